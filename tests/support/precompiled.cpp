// The source of the targets that own precompiled headers (tests/CMakeLists.txt).
//
// CMake compiles headers ahead for a target that has a source. This one is empty: the headers alone are of use.
