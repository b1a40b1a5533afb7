#!/bin/sh
# Tries a package where there is nothing of ours: sh examples/package/run.sh WAY… [-- FILE:FACTORY]
#   c        a C program, linked to the shared and to the static library
#   rust     the package's crate (cargo)
#   fortran  the package's module (gfortran)
#   bare     a static program in a folder with nothing else, by chroot (musl through zig; root)
#   libc     a folder with Debian's libc6 in it and no other package, by chroot (apt-get, dpkg; root)
#   debian   a new Debian, by chroot (debootstrap; root; some 200 MB)
#   aarch64  the library for ARM under qemu-aarch64 (zig, qemu-user)
# FACTORY returns a model with its arguments (make.py); `rust` and `fortran` are for the usual one. Everything
# lies in $WHERE (package-example); PYTHON, CC, FC, MIRROR may be set. MADE=1 takes the package that is there.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
where=${WHERE:-package-example}
python=${PYTHON:-python3}
ways=; factory=
while [ $# -gt 0 ]; do
  if [ "$1" = -- ]; then factory=$2; shift; else ways="$ways $1"; fi
  shift
done
[ -n "$ways" ] || { sed -n '2,/^set/p' "$0" | grep '^#' | cut -c3-; exit 2; }

targets=
for way in $ways; do
  case $way in
    bare) targets="$targets --target x86_64-linux-musl" ;;
    aarch64) targets="$targets --target aarch64-linux-musl" ;;
    *) case "$targets" in *native*) ;; *) targets="$targets --target native" ;; esac ;;
  esac
done
[ -n "${MADE:-}" ] || "$python" "$here/make.py" "$where" $factory $targets
cd "$where"
name=$(cat name)
package=$name.smelt
native=$package/lib/$(uname -m)-linux
flags="-std=c99 -O2 -Wall -Wextra -DMODEL=$name -DHEADER=\"$name.h\" -I$package/include $here/main.c"

static() { # TARGET OUTPUT: a static program for a target, by zig
  "$python" -m ziglang cc -target "$1" -static -s $flags "$package/lib/$1/lib$name.a" -lm -o "$2"
}

inside() { # ROOT: copies what a run needs, runs it there
  mkdir -p "$1/model"
  cp -r data "$package/weights.safetensors" "$1/model"
  chroot "$1" /model/main /model/weights.safetensors /model/data
}

for way in $ways; do
  echo "== $way"
  case $way in
    c)
      ${CC:-cc} $flags "-L$native" "-l$name" -lm "-Wl,-rpath,$PWD/$native" -o main-shared
      ./main-shared "$package/weights.safetensors" data
      ${CC:-cc} $flags "$native/lib$name.a" -lm -lpthread -o main-static
      ./main-static "$package/weights.safetensors" data
      ;;
    rust)
      mkdir -p "$package/rust/examples"
      cp "$here/main.rs" "$package/rust/examples/main.rs"
      CARGO_TARGET_DIR=$PWD/rust-target cargo run --offline --quiet --release \
        --manifest-path "$package/rust/Cargo.toml" --example main -- "$package/weights.safetensors" data
      ;;
    fortran)
      ${FC:-gfortran} -O2 -J. "$package/fortran/$name.f90" "$here/main.f90" "$native/lib$name.a" -lm -lpthread -o main-fortran
      ./main-fortran "$package/weights.safetensors" data
      ;;
    bare)
      rm -rf bare && mkdir -p bare/model
      static x86_64-linux-musl bare/model/main
      inside bare
      find bare -type f | sort
      ;;
    libc)
      rm -rf libc && mkdir -p libc/model
      (cd libc/model && apt-get -qq download libc6 && dpkg-deb -x libc6*.deb .. && rm libc6*.deb)
      ${CC:-cc} $flags "-L$native" "-l$name" -lm -Wl,-rpath,/model -o libc/model/main
      cp "$native/lib$name.so" libc/model
      inside libc
      ;;
    debian)
      [ -d debian/usr ] || debootstrap --variant=minbase stable debian "${MIRROR:-http://deb.debian.org/debian}" >debootstrap.log
      rm -rf debian/model && mkdir -p debian/model
      ${CC:-cc} $flags "-L$native" "-l$name" -lm -Wl,-rpath,/model -o debian/model/main
      cp "$native/lib$name.so" debian/model
      ! chroot debian sh -c 'command -v python3 || command -v cc'
      inside debian
      ;;
    aarch64)
      static aarch64-linux-musl main-aarch64
      qemu-aarch64 ./main-aarch64 "$package/weights.safetensors" data
      ;;
    *) echo "there is no way '$way'" >&2; exit 2 ;;
  esac
done
