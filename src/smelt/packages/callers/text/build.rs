use std::{env, path::Path, process};

fn main() {
    let of = |name: &str| env::var(name).unwrap_or_default();
    let musl = if of("CARGO_CFG_TARGET_ENV") == "musl" { "-musl" } else { "" };
    let target = format!("{}-{}{musl}", of("CARGO_CFG_TARGET_ARCH"), of("CARGO_CFG_TARGET_OS"));
    let folder = Path::new(&of("CARGO_MANIFEST_DIR")).join("../lib").join(&target);
    println!("cargo:rerun-if-changed={}", folder.display());
    println!("cargo:rustc-link-search=native={}", folder.display());
    if folder.join("libNAME.a").exists() || folder.join("NAME.lib").exists() {
        println!("cargo:rustc-link-lib=static=NAME");
    } else if folder.exists() {
        println!("cargo:rustc-link-lib=dylib=NAME");
        println!("cargo:rustc-link-arg=-Wl,-rpath,{}", folder.display());
    } else {
        eprintln!("NAME has no library for {target}: {} is missing; build it from the sources", folder.display());
        process::exit(1);
    }
    if of("CARGO_CFG_TARGET_OS") != "windows" {
        println!("cargo:rustc-link-lib=m");
    }
}
