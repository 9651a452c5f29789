# The toolchain of `make test-windows`: builds for 64-bit Windows with Debian's mingw-w64 (POSIX threads, everything of GCC's linked
# statically), and runs tests under Wine.
set(CMAKE_SYSTEM_NAME Windows)
set(CMAKE_SYSTEM_PROCESSOR x86_64)
set(CMAKE_C_COMPILER x86_64-w64-mingw32-gcc-posix)
set(CMAKE_CXX_COMPILER x86_64-w64-mingw32-g++-posix)
set(CMAKE_RC_COMPILER x86_64-w64-mingw32-windres)
set(CMAKE_CROSSCOMPILING_EMULATOR ${CMAKE_CURRENT_LIST_DIR}/wine.sh)
# Header-only libraries serve both systems, but the folder that they stand in is this system's: links to them alone.
foreach(header xxhash.h nlohmann stb simde)
  if(EXISTS /usr/include/${header})
    file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/headers/include)
    file(CREATE_LINK /usr/include/${header} ${CMAKE_BINARY_DIR}/headers/include/${header} SYMBOLIC)
  endif()
endforeach()
file(WRITE ${CMAKE_BINARY_DIR}/headers/lib/cmake/nlohmann_json/nlohmann_jsonConfig.cmake
     "if(NOT TARGET nlohmann_json::nlohmann_json)
  add_library(nlohmann_json::nlohmann_json INTERFACE IMPORTED)
endif()
")
file(WRITE ${CMAKE_BINARY_DIR}/headers/lib/cmake/nlohmann_json/nlohmann_jsonConfigVersion.cmake "set(PACKAGE_VERSION_COMPATIBLE TRUE)
")
set(CMAKE_FIND_ROOT_PATH /usr/x86_64-w64-mingw32 ${CMAKE_BINARY_DIR}/headers)
set(CMAKE_CXX_STANDARD_INCLUDE_DIRECTORIES ${CMAKE_BINARY_DIR}/headers/include)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
# GCC aligns no stack for 32-byte registers on this system (GCC bug 54412): every vector move is assembled as one that needs no
# alignment. Windows 10 is the oldest system.
set(CMAKE_C_FLAGS_INIT "-Wa,-muse-unaligned-vector-move -D_WIN32_WINNT=0x0A00")
set(CMAKE_CXX_FLAGS_INIT "-Wa,-muse-unaligned-vector-move -D_WIN32_WINNT=0x0A00")
set(CMAKE_EXE_LINKER_FLAGS_INIT "-static")
set(CMAKE_SHARED_LINKER_FLAGS_INIT "-static")
