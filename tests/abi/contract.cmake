# What the interface promises, proved through the shared library and orrery.h alone; tests/fault does the same with a system
# that refuses.
add_library(tiny_model STATIC tiny_model.cpp)
target_link_libraries(tiny_model PUBLIC test_support)

if(TARGET orrery_shared AND NOT ORRERY_FUZZ)
  find_package(nlohmann_json 3.9 REQUIRED)
  file(GLOB contract_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/contract_*_test.cpp)
  if(WIN32)
    list(FILTER contract_sources EXCLUDE REGEX "/contract_posix_[a-z_]*\\.cpp$")
  endif()
  orrery_test(abi_contract SOURCES ${contract_sources} LIBS orrery_shared tiny_model nlohmann_json::nlohmann_json TIMEOUT 600 COST 20)
  set_tests_properties(abi_contract PROPERTIES LABELS cpu_path)   # make test-paths
  compile_together(abi_contract)

  orrery_test(abi_layers SOURCES layers_test.cpp ROOMS base os gguf LIBS orrery_objects tiny_model)

  # As a C program has it: to the letter of C99, with the header alone.
  add_executable(abi_c99_program c99_program.c)
  target_compile_options(abi_c99_program PRIVATE -pedantic-errors -Wall -Wextra)
  target_link_libraries(abi_c99_program PRIVATE orrery_flags orrery_shared)
  add_test(NAME abi_c99_program COMMAND abi_c99_program ${PROJECT_SOURCE_DIR}/samples/models/demo-q8_0.gguf)

  # A library with a sanitizer inside cannot be loaded by a program without one.
  if(NOT ORRERY_SANITIZE)
    add_executable(abi_old_caller old_caller.c)
    target_compile_options(abi_old_caller PRIVATE -pedantic-errors -Wall -Wextra)
    target_link_libraries(abi_old_caller PRIVATE ${CMAKE_DL_LIBS})
    add_dependencies(abi_old_caller orrery_shared)
    add_test(NAME abi_old_caller COMMAND abi_old_caller $<TARGET_FILE:orrery_shared>
                                         ${PROJECT_SOURCE_DIR}/samples/models/demo-q8_0.gguf)
    set_tests_properties(abi_c99_program abi_old_caller PROPERTIES TIMEOUT 120)
  endif()
endif()
