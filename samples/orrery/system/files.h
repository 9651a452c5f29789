// Files by UTF-8 paths, as thin as the systems allow. Descriptors are those of the C runtime, and a failed call leaves its reason in errno.
// posix_files.cpp and windows_files.cpp implement it. write_file.h writes files whole.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace orrery::tool {

enum class Access {
  read,
  append,          // creates the file; every write goes to its end
  append_private,  // the same, readable by its owner alone
};
// The descriptor, or -1. It is not inherited by other programs. A Ctrl-C ends the wait for a pipe's writer (EINTR).
int open_file(const std::string& path, Access access);
void close_file(int fd);

// Reads at most `bytes`. 0: the end; -1: an error. A Ctrl-C may end it early (EINTR). A Windows console gives UTF-8 with "\n"
// behind a line.
ptrdiff_t read_some(int fd, char* to, size_t bytes);
// False: errno says why; EPIPE: the reader has closed a pipe. A Windows console gets the text as UTF-16; a character may come in pieces.
bool write_all(int fd, std::string_view bytes);
bool truncate_file(int fd, uint64_t bytes);
// -1: unknown.
int64_t file_bytes(int fd);

enum class FileKind { none, regular, folder, other, unknown };  // unknown: an error
FileKind file_kind(const std::string& path);
// Creates one folder. False: an error; EEXIST if there is something.
bool make_one_folder(const std::string& path, bool private_to_user);
// Whether files can be created in the folder.
bool can_write_in(const std::string& folder);
void remove_file(const std::string& path);
// Creates an empty temporary file, of which holes take no room where the system can do that. Returns its path; "": an error.
std::string make_temporary_file();

// The beginning of `path` up to and with its last separator; "" without one.
std::string folder_of(const std::string& path);

}  // namespace orrery::tool
