# orrery_archive(SOURCE FUNCTION ARCHITECTURES FILE.cu...): the compiled kernels of these files. Sets SOURCE to the path of a source that
# defines FUNCTION(), as archive() of device/archive.h; the caller's folder builds it. For each file it makes in build/ptx:
#   NAME.ptx           by nvcc, once. tests/ptx runs this very text
#   NAME.90.ptx        likewise, where ARCHITECTURES has sm_90 or newer: kernels that may start before the kernels ahead of them end (device/ptx.h)
#   NAME.sm_86.cubin   machine code of that, by ptxas, for each of ARCHITECTURES
#   NAME_86.fatbin     both, compressed; without architectures the text as it is, for tests that read it
# As a script (cmake -P), this file writes the source.
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
if(ORRERY_NVCC)
  cmake_path(GET ORRERY_NVCC PARENT_PATH orrery_cuda_tools)
  execute_process(COMMAND ${ORRERY_NVCC} --version OUTPUT_VARIABLE said)
  string(REGEX MATCH "release ([0-9]+)[.]([0-9]+)" said "${said}")
  math(EXPR orrery_cuda_version "1000 * ${CMAKE_MATCH_1} + 10 * ${CMAKE_MATCH_2}")
endif()
# Other folders call orrery_archive(), too: what it needs is not a variable of this folder alone.
foreach(name orrery_cuda_tools orrery_cuda_version)
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
endfunction()

function(orrery_archive source_variable called architectures)
  if(NOT ORRERY_NVCC OR orrery_cuda_version LESS 12000)
    message(FATAL_ERROR "ORRERY_CUDA needs nvcc of CUDA 12 or newer")
  endif()
  set(folder ${PROJECT_BINARY_DIR}/ptx)
  list(TRANSFORM architectures REPLACE "-.*" "")
  list(JOIN architectures "_" suffix)
  set(suffix _${suffix})
  set(out ${CMAKE_CURRENT_BINARY_DIR}/${called}${suffix}.cpp)
  set(${source_variable} ${out} PARENT_SCOPE)
  separate_arguments(flags UNIX_COMMAND "${ORRERY_PTXAS_FLAGS}")
  set(names "")
  set(fatbins "")
  set(compress --compress-all)
  if(NOT architectures)
    set(compress --compress=false)
  endif()
  foreach(source ${ARGN})
    orrery_ptx(${source} 80 text)
    cmake_path(GET source STEM name)
    set(images --image3=kind=ptx,sm=80,file=${text})
    set(codes "")
    foreach(architecture ${architectures})
      set(code ${folder}/${name}.sm_${architecture}.cubin)
      set(of_text ${text})
      if(architecture GREATER_EQUAL 90)
        orrery_ptx(${source} 90 of_text)
      endif()
      add_custom_command(OUTPUT ${code} COMMENT "Compiling ${name}.cu for sm_${architecture}"
        COMMAND ${orrery_cuda_tools}/ptxas -arch=sm_${architecture} -O3 -lineinfo --warn-on-spills
                "$<$<BOOL:${ORRERY_WERROR}>:--warning-as-error>" ${flags} -o ${code} ${of_text}
        DEPENDS ${of_text} VERBATIM COMMAND_EXPAND_LISTS)
      list(APPEND codes ${code})
      list(APPEND images --image3=kind=elf,sm=${architecture},file=${code})
    endforeach()
    set(fatbin ${folder}/${name}${suffix}.fatbin)
    add_custom_command(OUTPUT ${fatbin} COMMENT ""
      COMMAND ${orrery_cuda_tools}/fatbinary ${compress} --create=${fatbin} ${images}
      DEPENDS ${text} ${codes} VERBATIM)
    list(APPEND names ${name})
    list(APPEND fatbins ${fatbin})
  endforeach()
  add_custom_command(OUTPUT ${out}
    COMMAND ${CMAKE_COMMAND} "-DNAMES=${names}" -DFOLDER=${folder} -DSUFFIX=${suffix} -DFUNCTION=${called}
            -DVERSION=${orrery_cuda_version} -DOUT=${out} -P ${orrery_archive_script}
    DEPENDS ${fatbins} ${orrery_archive_script} VERBATIM)
  set_source_files_properties(${out} PROPERTIES OBJECT_DEPENDS "${fatbins}")
endfunction()
