# `make install`: header, both libraries, pkg-config file and CMake package, examples and documents.  (samples/ installs the
# tool and the demo model.)  Nothing installed names the place it was built or installed to: a prefix may be moved.
include(CMakePackageConfigHelpers)

set_target_properties(orrery_shared PROPERTIES EXPORT_NAME orrery)
if(WIN32)
  install(FILES ${PROJECT_BINARY_DIR}/orrery.def DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development)
endif()
set_target_properties(orrery_static PROPERTIES EXPORT_NAME static)
# Components: library (what a program runs with), development (what a program is built with), tool (samples/).
install(TARGETS orrery_shared EXPORT orreryTargets
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT library NAMELINK_COMPONENT development
        RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT library ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development)
install(TARGETS orrery_static EXPORT orreryStaticTargets ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development)
install(FILES ${PROJECT_SOURCE_DIR}/include/orrery.h ${PROJECT_SOURCE_DIR}/include/orrery_lab.h
        DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development)
install(FILES ${PROJECT_SOURCE_DIR}/README.md DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT development)
# The licences of all that is compiled in. Each of Debian's packages has them in its file `copyright`; a full installation does not need that.
set(licences ${PROJECT_BINARY_DIR}/licences)
file(REMOVE_RECURSE ${licences})
file(COPY ${PROJECT_SOURCE_DIR}/LICENSE ${CMAKE_CURRENT_SOURCE_DIR}/licences/ DESTINATION ${licences})
if(ORRERY_MIMALLOC_SOURCE)
  file(COPY_FILE ${ORRERY_MIMALLOC_SOURCE}/LICENSE ${licences}/LICENSE.mimalloc)
endif()
install(DIRECTORY ${licences}/ DESTINATION ${CMAKE_INSTALL_DOCDIR} COMPONENT development)
file(GLOB texts ${licences}/*)
set(copyright "")
foreach(text ${texts})
  file(READ ${text} of_one)
  cmake_path(GET text EXTENSION name)
  string(REPLACE "." "" name "${name}")
  string(APPEND copyright "==== ${name}\n\n${of_one}\n")
endforeach()
string(REPLACE "==== \n" "==== orrery\n" copyright "${copyright}")
file(WRITE ${PROJECT_BINARY_DIR}/copyright "${copyright}")
# orrery_copyright(COMPONENT PACKAGE): the file of one of Debian's packages.
function(orrery_copyright component package)
  install(FILES ${PROJECT_BINARY_DIR}/copyright DESTINATION ${CMAKE_INSTALL_DATAROOTDIR}/doc/${package} COMPONENT ${component} EXCLUDE_FROM_ALL)
endfunction()
install(FILES ${PROJECT_SOURCE_DIR}/samples/chat.c ${PROJECT_SOURCE_DIR}/samples/form.c ${PROJECT_SOURCE_DIR}/samples/tools.c
        DESTINATION ${CMAKE_INSTALL_DOCDIR}/examples COMPONENT development)

# With operators of its own the static library holds the C++ standard library, and is C to whoever links it.
set(cxx_library " -lstdc++")
set(static_is_c OFF)
if(ORRERY_OWN_OPERATORS)
  set(cxx_library "")
  set(static_is_c ON)
endif()

# find_package(orrery) gives orrery::orrery (shared) and orrery::static.
set(package ${CMAKE_INSTALL_LIBDIR}/cmake/orrery)
install(EXPORT orreryTargets NAMESPACE orrery:: DESTINATION ${package} COMPONENT development)
install(EXPORT orreryStaticTargets NAMESPACE orrery:: DESTINATION ${package} COMPONENT development)
configure_package_config_file(${CMAKE_CURRENT_SOURCE_DIR}/orreryConfig.cmake.in
                              ${PROJECT_BINARY_DIR}/orreryConfig.cmake INSTALL_DESTINATION ${package})
# Before 1.0 a minor version may break callers.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/orreryConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/orreryConfig.cmake ${PROJECT_BINARY_DIR}/orreryConfigVersion.cmake
        DESTINATION ${package} COMPONENT development)

# The prefix, seen from the pkg-config file's own folder.
file(RELATIVE_PATH prefix_from_pc ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
string(REGEX REPLACE "/$" "" prefix_from_pc "${prefix_from_pc}")
configure_file(orrery.pc.in ${PROJECT_BINARY_DIR}/orrery.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/orrery.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT development)
