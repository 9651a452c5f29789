# orrery_archive(SOURCE FUNCTION ARCHITECTURES FILE.cu...): the compiled kernels of these files. Sets SOURCE to the path of a source that
# defines FUNCTION(), as archive() of device/archive.h; the caller's folder builds it. For each file it makes in build/ptx:
#   NAME.ptx           by nvcc, once. tests/ptx runs this very text
#   NAME.90.ptx        likewise, where ARCHITECTURES has sm_90 or newer: kernels that may start before the kernels ahead of them end (device/ptx.h)
#   NAME.oldest.ptx    the same for the oldest driver: the text claims the version of PTX that it needs, not the newest that nvcc knows, and
#                      leaves out hints that later versions have brought (used_bytes_mask). Driver 525 (CUDA 12.0) compiles it
#   NAME.sm_86.cubin   machine code of NAME.ptx, or NAME.90.ptx, by ptxas, for each of ARCHITECTURES. Drivers read the machine code of toolkits of their own
#                      major version, and older: a build for drivers before 580 takes the ptxas of CUDA 12.8 (ORRERY_PTXAS), which reads
#                      NAME.oldest.ptx, or NAME.90.oldest.ptx
#   NAME_86.fatbin     machine code and NAME.oldest.ptx, compressed unless it is for older drivers, which do not read every compression of
#                      toolkit 13; without architectures NAME.ptx as it is, for tests that read it
# As a script (cmake -P), this file writes the source; with TEXT, NAME.oldest.ptx.
if(CMAKE_SCRIPT_MODE_FILE AND DEFINED TEXT)
  file(READ ${TEXT} text)
  string(REGEX REPLACE "\n[.]version [0-9.]+" "\n.version 8.0" text "${text}")
  string(REGEX REPLACE "\n[ \t]*[.]pragma \"used_bytes_mask [0-9xa-fA-F]+\";" "" text "${text}")
  file(WRITE ${OUT} "${text}")
  return()
endif()
if(CMAKE_SCRIPT_MODE_FILE)
  set(tables "")
  set(images "")
  foreach(name ${NAMES})
    file(STRINGS ${FOLDER}/${name}.ptx entries REGEX "[.]entry ")
    list(TRANSFORM entries REPLACE "^.*[.]entry ([^(]+).*$" "    \"\\1\",")
    list(JOIN entries "\n" entries)
    file(SIZE ${FOLDER}/${name}${SUFFIX}.fatbin bytes)
    string(APPEND tables "asm(ORRERY_IMAGE(\"orrery_image_${name}\", \"${FOLDER}/${name}${SUFFIX}.fatbin\"));
extern \"C\" __attribute__((visibility(\"hidden\"))) const unsigned char orrery_image_${name}[];
const char* const kernels_of_${name}[] = {\n${entries}\n    nullptr};\n")
    string(APPEND images "    {\"${name}\", orrery_image_${name}, ${bytes}, kernels_of_${name}},\n")
  endforeach()
  file(WRITE ${OUT} "// Made by cuda/archive.cmake.
#include \"cuda/device/archive.h\"

// The file's bytes as constants of this object, under a name that only this object sees.
#ifdef _WIN32
#define ORRERY_SECTION \".section .rdata,\\\"dr\\\"\"
#else
#define ORRERY_SECTION \".section .rodata\"
#endif
#define ORRERY_IMAGE(name, path) ORRERY_SECTION \"\\n.balign 64\\n\" name \":\\n.incbin \\\"\" path \"\\\"\\n.text\\n\"

namespace orrery::cuda {
namespace {

${tables}
const Image images[] = {
${images}};

}  // namespace

Span<const Image> ${FUNCTION}() { return {images, sizeof images / sizeof images[0]}; }
int ${FUNCTION}_version() { return ${VERSION}; }

}  // namespace orrery::cuda
")
  return()
endif()

find_program(ORRERY_NVCC nvcc HINTS /usr/local/cuda/bin)
set(ORRERY_PTXAS "" CACHE FILEPATH "The ptxas of an older toolkit, for machine code that drivers of its time read; empty: nvcc's own")
if(ORRERY_NVCC)
  cmake_path(GET ORRERY_NVCC PARENT_PATH orrery_cuda_tools)
  execute_process(COMMAND ${ORRERY_NVCC} --version OUTPUT_VARIABLE said)
  string(REGEX MATCH "release ([0-9]+)[.]([0-9]+)" said "${said}")
  math(EXPR orrery_cuda_version "1000 * ${CMAKE_MATCH_1} + 10 * ${CMAKE_MATCH_2}")
  execute_process(COMMAND ${ORRERY_NVCC} --list-gpu-code OUTPUT_VARIABLE orrery_cuda_codes)   # "sm_80", a line each
  string(REGEX MATCHALL "sm_[0-9]+" orrery_cuda_codes "${orrery_cuda_codes}")
  set(orrery_ptxas ${orrery_cuda_tools}/ptxas)
  if(ORRERY_PTXAS)
    set(orrery_ptxas ${ORRERY_PTXAS})
    execute_process(COMMAND ${ORRERY_PTXAS} --version OUTPUT_VARIABLE said COMMAND_ERROR_IS_FATAL ANY)
    string(REGEX MATCH "release ([0-9]+)[.]([0-9]+)" said "${said}")
    math(EXPR orrery_cuda_version "1000 * ${CMAKE_MATCH_1} + 10 * ${CMAKE_MATCH_2}")
    execute_process(COMMAND ${ORRERY_PTXAS} --help OUTPUT_VARIABLE said)
    string(REGEX MATCHALL "sm_[0-9]+" orrery_cuda_codes "${said}")
  endif()
endif()
# Other folders call orrery_archive(), too: what it needs is not a variable of this folder alone.
foreach(name orrery_cuda_tools orrery_cuda_version orrery_cuda_codes orrery_ptxas)
  set(${name} "${${name}}" CACHE INTERNAL "")
endforeach()
set(orrery_archive_script ${CMAKE_CURRENT_LIST_FILE} CACHE INTERNAL "")

# The PTX of a file for a virtual architecture, as a file of the build: NAME.ptx for 80, NAME.90.ptx for 90. Archives of one folder share it.
function(orrery_ptx source virtual out)
  cmake_path(GET source STEM name)
  set(text ${PROJECT_BINARY_DIR}/ptx/${name}.ptx)
  if(NOT virtual EQUAL 80)
    set(text ${PROJECT_BINARY_DIR}/ptx/${name}.${virtual}.ptx)
  endif()
  set(${out} ${text} PARENT_SCOPE)
  get_property(known GLOBAL PROPERTY ORRERY_PTX)
  if(text IN_LIST known)
    return()
  endif()
  set_property(GLOBAL APPEND PROPERTY ORRERY_PTX ${text})
  file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/ptx)
  # 554: a conversion from a type to itself, which templates name.
  add_custom_command(OUTPUT ${text} COMMENT "Compiling ${name}.cu to PTX of ${virtual}"
    COMMAND ${ORRERY_NVCC} -std=c++17 -O3 -ptx -arch=compute_${virtual} -lineinfo -diag-suppress=554
            "$<$<BOOL:${ORRERY_WERROR}>:-Werror;all-warnings>" -I${PROJECT_SOURCE_DIR} -I${PROJECT_SOURCE_DIR}/include -MD -MF ${text}.d
            -o ${text} ${source}
    DEPENDS ${source} DEPFILE ${text}.d VERBATIM COMMAND_EXPAND_LISTS)
  string(REGEX REPLACE "[.]ptx$" ".oldest.ptx" oldest ${text})
  add_custom_command(OUTPUT ${oldest} COMMENT "" COMMAND ${CMAKE_COMMAND} -DTEXT=${text} -DOUT=${oldest} -P ${orrery_archive_script}
    DEPENDS ${text} ${orrery_archive_script} VERBATIM)
endfunction()

function(orrery_archive source_variable called architectures)
  if(NOT ORRERY_NVCC OR orrery_cuda_version LESS 12000)
    message(FATAL_ERROR "ORRERY_CUDA needs nvcc of CUDA 12 or newer")
  endif()
  set(folder ${PROJECT_BINARY_DIR}/ptx)
  list(TRANSFORM architectures REPLACE "-.*" "")
  # 100, 101 and 120 need nvcc 12.8, 103 and 121 need 12.9: those that this nvcc does not know run what the driver compiles of the PTX.
  set(unknown "${architectures}")
  list(TRANSFORM unknown PREPEND sm_)
  list(REMOVE_ITEM unknown ${orrery_cuda_codes} "")
  list(TRANSFORM unknown REPLACE "sm_" "")
  if(unknown)
    list(REMOVE_ITEM architectures ${unknown})
    list(JOIN unknown ", " words)
    message(STATUS "no machine code for ${words}: nvcc does not know them, and the driver will compile the PTX")
  endif()
  list(JOIN architectures "_" suffix)
  set(suffix _${suffix})
  set(out ${CMAKE_CURRENT_BINARY_DIR}/${called}${suffix}.cpp)
  set(${source_variable} ${out} PARENT_SCOPE)
  separate_arguments(flags UNIX_COMMAND "${ORRERY_PTXAS_FLAGS}")
  set(names "")
  set(fatbins "")
  set(compress --compress-all)
  if(NOT architectures OR ORRERY_PTXAS)
    set(compress --compress=false)
  endif()
  foreach(source ${ARGN})
    orrery_ptx(${source} 80 text)
    cmake_path(GET source STEM name)
    set(oldest ${folder}/${name}.oldest.ptx)
    set(images --image3=kind=ptx,sm=80,file=${oldest})
    set(of_ptxas ${text})
    if(NOT architectures)
      set(images --image3=kind=ptx,sm=80,file=${text})
    elseif(ORRERY_PTXAS)
      set(of_ptxas ${oldest})
    endif()
    set(codes "")
    foreach(architecture ${architectures})
      set(code ${folder}/${name}.sm_${architecture}.cubin)
      set(of_code ${of_ptxas})
      if(architecture GREATER_EQUAL 90)
        orrery_ptx(${source} 90 of_code)
        if(ORRERY_PTXAS)
          set(of_code ${folder}/${name}.90.oldest.ptx)
        endif()
      endif()
      add_custom_command(OUTPUT ${code} COMMENT "Compiling ${name}.cu for sm_${architecture}"
        COMMAND ${orrery_ptxas} -arch=sm_${architecture} -O3 -lineinfo --warn-on-spills
                "$<$<BOOL:${ORRERY_WERROR}>:--warning-as-error>" ${flags} -o ${code} ${of_code}
        DEPENDS ${of_code} VERBATIM COMMAND_EXPAND_LISTS)
      list(APPEND codes ${code})
      list(APPEND images --image3=kind=elf,sm=${architecture},file=${code})
    endforeach()
    set(fatbin ${folder}/${name}${suffix}.fatbin)
    add_custom_command(OUTPUT ${fatbin} COMMENT ""
      COMMAND ${orrery_cuda_tools}/fatbinary ${compress} --create=${fatbin} ${images}
      DEPENDS ${text} ${oldest} ${codes} VERBATIM)
    list(APPEND names ${name})
    list(APPEND fatbins ${fatbin})
  endforeach()
  add_custom_command(OUTPUT ${out}
    COMMAND ${CMAKE_COMMAND} "-DNAMES=${names}" -DFOLDER=${folder} -DSUFFIX=${suffix} -DFUNCTION=${called}
            -DVERSION=${orrery_cuda_version} -DOUT=${out} -P ${orrery_archive_script}
    DEPENDS ${fatbins} ${orrery_archive_script} VERBATIM)
  set_source_files_properties(${out} PROPERTIES OBJECT_DEPENDS "${fatbins}")
endfunction()
