# Decides, before the rooms are made, where the library's allocations come from. Sets
#   ORRERY_OWN_OPERATORS    the libraries have operators new and delete of their own, and the C++ standard library inside
#   ORRERY_MIMALLOC_SOURCE  the folder of mimalloc's sources; empty: blocks come from malloc
# README.md in this folder says why.
include(CheckCXXSourceCompiles)

set(ORRERY_OWN_OPERATORS OFF)
if(CMAKE_SYSTEM_NAME STREQUAL "Linux" AND NOT ORRERY_SANITIZE AND NOT ORRERY_FUZZ)  # sanitizers have their own operators
  set(CMAKE_REQUIRED_LINK_OPTIONS -static-libstdc++)
  check_cxx_source_compiles("#include <string>\nint main(int n, char** v) { return static_cast<int>(std::string(v[0]).size()) + n; }"
                            ORRERY_HAVE_STATIC_LIBSTDCXX)
  unset(CMAKE_REQUIRED_LINK_OPTIONS)
  set(ORRERY_OWN_OPERATORS ${ORRERY_HAVE_STATIC_LIBSTDCXX})
endif()

# Debian has the shared library and the sources as packages, no static library; .ci/packages puts the sources there.
file(GLOB found /usr/src/mimalloc-*/src/static.c /usr/local/src/mimalloc-*/src/static.c)
set(newest "")
foreach(file ${found})
  cmake_path(GET file PARENT_PATH folder)
  cmake_path(GET folder PARENT_PATH newest)
endforeach()
set(ORRERY_MIMALLOC_FOLDER "" CACHE PATH "mimalloc's sources: a folder with src/static.c; empty: the newest in /usr/src")
if(ORRERY_MIMALLOC_FOLDER)
  set(newest "${ORRERY_MIMALLOC_FOLDER}")
endif()
set(ORRERY_MIMALLOC_SOURCE "")
set(without "")
if(ORRERY_MIMALLOC STREQUAL "OFF")
  set(without "ORRERY_MIMALLOC is OFF")
elseif(NOT ORRERY_OWN_OPERATORS)
  set(without "sanitizers, fuzzing and systems other than Linux, or without a static libstdc++, keep the program's operator new")
elseif(NOT EXISTS "${newest}/src/static.c")
  set(without "its sources are not there, neither in ORRERY_MIMALLOC_FOLDER nor in /usr/src/mimalloc-* (.ci/packages build brings Debian's)")
else()
  set(ORRERY_MIMALLOC_SOURCE "${newest}")
endif()
if(without AND ORRERY_MIMALLOC STREQUAL "ON" AND NOT ORRERY_SANITIZE AND NOT ORRERY_FUZZ)
  message(FATAL_ERROR "ORRERY_MIMALLOC is ON, but ${without}")
endif()
if(without)
  message(STATUS "Allocations of the library: malloc; ${without}")
else()
  message(STATUS "Allocations of the library: mimalloc, from ${ORRERY_MIMALLOC_SOURCE}")
endif()
