"""CMakeLists.txt and Makefile of a package: its library from a bare folder, with compilers alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import PurePath

from smelt.packages.build import level_of
from smelt.packages.targets import C_FLAGS, DEFAULT_LEVELS, KERNEL_FLAGS, LEVELS, LINK
from smelt.runtime.toolchain import CLANG_FLAGS, GCC_FLAGS

_PROCESSORS = {"x86_64": ("x86_64", "amd64"), "aarch64": ("aarch64", "arm64")}
"""Words that a compiler's name for its target begins with."""

_CMAKE = """\
# Builds the library of the model {name} from its sources:
#   cmake -S . -B build && cmake --build build
# In another project: add_subdirectory(this folder), then target_link_libraries(… {name}) or {name}_static.
cmake_minimum_required(VERSION 3.13)
project({name} LANGUAGES C CXX)

set(sources
{common})
if(CMAKE_C_COMPILER_TARGET)
  set(machine ${{CMAKE_C_COMPILER_TARGET}})
else()
  execute_process(COMMAND ${{CMAKE_C_COMPILER}} ${{CMAKE_C_COMPILER_ARG1}} -dumpmachine
    OUTPUT_VARIABLE machine OUTPUT_STRIP_TRAILING_WHITESPACE)
endif()
{levels}
set(kernel_flags {kernel_flags})
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  list(APPEND kernel_flags {gcc_flags})
else()
  list(APPEND kernel_flags {clang_flags})
endif()

add_library({name}_objects OBJECT ${{sources}})
set_target_properties({name}_objects PROPERTIES POSITION_INDEPENDENT_CODE ON)
target_include_directories({name}_objects PRIVATE include)
target_compile_options({name}_objects PRIVATE
  "$<$<COMPILE_LANGUAGE:C>:{c_flags}>"
  "$<$<COMPILE_LANGUAGE:CXX>:${{kernel_flags}}>")

find_package(Threads REQUIRED)
add_library({name} SHARED $<TARGET_OBJECTS:{name}_objects>)
add_library({name}_static STATIC $<TARGET_OBJECTS:{name}_objects>)
foreach(library {name} {name}_static)
  set_target_properties(${{library}} PROPERTIES LINKER_LANGUAGE C OUTPUT_NAME {name})
  target_include_directories(${{library}} PUBLIC include)
  target_link_libraries(${{library}} PRIVATE Threads::Threads)
  if(UNIX AND NOT APPLE)
    target_link_libraries(${{library}} PRIVATE m)
  endif()
endforeach()
if(UNIX AND NOT APPLE)
  target_link_libraries({name} PRIVATE {link_flags})
endif()
"""

_MAKE = """\
# Builds the library of the model {name} from its sources, with GNU make: make -j CC=cc CXX=c++
CC ?= cc
CXX ?= c++
AR ?= ar
BUILD ?= build

machine := $(shell $(CC) -dumpmachine)
kernel_flags := {kernel_flags}
ifneq (,$(findstring clang,$(shell $(CXX) --version)))
kernel_flags += {clang_flags}
else
kernel_flags += {gcc_flags}
endif

sources := {common}
{levels}
ifneq (,$(findstring darwin,$(machine)))
shared := $(BUILD)/lib{name}.dylib
link := -fPIC -shared {macos}
else ifneq (,$(findstring mingw,$(machine)))
shared := $(BUILD)/{name}.dll
link := -shared
else
shared := $(BUILD)/lib{name}.so
link := -fPIC -shared {linux} -lm -lpthread
endif
pic := $(filter -fPIC,$(link))

static := $(BUILD)/lib{name}.a
objects := $(sources:%=$(BUILD)/%.o)

all: $(shared) $(static)

$(shared): $(objects)
	$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $(objects) $(link)

$(static): $(objects)
	rm -f $@
	$(AR) rcs $@ $(objects)

$(BUILD)/%.c.o: src/%.c
	@mkdir -p $(BUILD)
	$(CC) $(CFLAGS) {c_flags} $(pic) $(baseline) -Iinclude -c $< -o $@

$(BUILD)/%.cpp.o: src/%.cpp
	@mkdir -p $(BUILD)
	$(CXX) $(CXXFLAGS) $(kernel_flags) $(pic) $(level) -Iinclude -c $< -o $@

clean:
	rm -f $(objects) $(shared) $(static)

.PHONY: all clean
"""


def build_files(name: str, sources: Sequence[str]) -> dict[str, str]:
    """The files that build the model ``name``, by name; ``sources``: the names of the files in ``src/``."""
    compiled = sorted(each for each in sources if each.endswith((".c", ".cpp")))
    common = [each for each in compiled if level_of(PurePath(each)) is None]
    flags = {
        "name": name,
        "linux": _words(flag.format(name=name) for flag in LINK["linux"]),
        "macos": _words(flag.format(name=name) for flag in LINK["macos"]),
        "link_flags": _words(flag for flag in LINK["linux"] if "{" not in flag),
    }
    groups = _by_machine(compiled)
    listed = {"kernel_flags": KERNEL_FLAGS, "gcc_flags": GCC_FLAGS, "clang_flags": CLANG_FLAGS}
    plain = {key: _words(value) for key, value in listed.items()}
    cmake = _CMAKE.format(
        **flags,
        **plain,
        common="".join(f"  src/{each}\n" for each in common),
        levels="\n".join(_cmake_levels(groups)),
        c_flags=";".join(C_FLAGS),
    )
    make = _MAKE.format(
        **flags,
        **plain,
        common=_words(common),
        levels="\n".join(_make_levels(groups)),
        c_flags=_words(C_FLAGS),
    )
    return {"CMakeLists.txt": cmake, "Makefile": make}


Groups = Mapping[str, Mapping[str, Sequence[str]]]
"""Processor → level → its files; any other processor is empty."""


def _by_machine(compiled: Sequence[str]) -> Groups:
    groups: dict[str, dict[str, list[str]]] = {}
    for each in compiled:
        level = level_of(PurePath(each))
        if level is not None:
            groups.setdefault(level.machine, {}).setdefault(level.name, []).append(each)
    return dict(sorted(groups.items(), reverse=True))


def _words(words: Iterable[str]) -> str:
    return " ".join(words)


def _cmake_levels(groups: Groups) -> Iterator[str]:
    """The files of the compiler's processor, and the flags of each level."""
    word = "if"
    for machine, levels in groups.items():
        if machine:
            yield f'{word}(machine MATCHES "^({"|".join(_PROCESSORS[machine])})")'
            yield f"  add_compile_options({_words(LEVELS[DEFAULT_LEVELS[machine][-1]].flags)})"
        else:
            yield "else()" if len(groups) > 1 else "if(TRUE)"
        for name, files in levels.items():
            paths = _words(f"src/{each}" for each in files)
            yield f"  list(APPEND sources {paths})"
            kernels = _words(f"src/{each}" for each in files if each.endswith(".cpp"))
            if LEVELS[name].flags:
                flags = ";".join(LEVELS[name].flags)
                yield f'  set_source_files_properties({kernels} PROPERTIES COMPILE_OPTIONS "{flags}")'
        word = "elseif"
    if "" not in groups:
        yield "else()"
        yield '  message(FATAL_ERROR "the package has no code for ${machine}")'
    yield "endif()"


def _make_levels(groups: Groups) -> Iterator[str]:
    """As `_cmake_levels`."""
    word = ""
    for machine, levels in groups.items():
        if machine:
            begins = _words(f"{each}%" for each in _PROCESSORS[machine])
            yield f"{word}ifneq (,$(filter {begins},$(machine)))"
            yield f"baseline := {_words(LEVELS[DEFAULT_LEVELS[machine][-1]].flags)}"
        else:
            yield "else" if len(groups) > 1 else "ifdef BUILD"
        for name, files in levels.items():
            yield f"sources += {_words(files)}"
            kernels = _words(f"$(BUILD)/{each}.o" for each in files if each.endswith(".cpp"))
            yield f"{kernels}: level := {_words(LEVELS[name].flags)}"
        word = "else "
    if "" not in groups:
        yield "else"
        yield "$(error the package has no code for $(machine))"
    yield "endif"
