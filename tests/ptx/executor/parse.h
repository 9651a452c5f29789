// The text of a PTX module as statements. This file knows the language's grammar, and none of its instructions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace orrery::ptx {

struct Statement {
  enum Kind { instruction, label, directive, open, close } kind = instruction;
  uint32_t line = 0;
  std::string guard;                  // "%p1", "!%p1"
  std::string word;                   // the mnemonic, the label's name, or the directive without its dot
  std::vector<std::string> operands;  // of an instruction, apart at the commas outside brackets
  std::string text;                   // of a directive: all behind its first word
};

struct ParameterText {
  std::string name;
  uint32_t align = 1, bytes = 0;
};

struct FunctionText {
  bool entry = false;
  std::string name;
  uint32_t line = 0;
  ParameterText result;  // of a function; no name if it returns nothing
  std::vector<ParameterText> parameters;
  uint32_t max_threads = 1024;
  std::vector<Statement> body;
};

struct VariableText {
  std::string name, space;        // "global", "const", "shared"
  uint32_t align = 1, bytes = 0;  // bytes 0: the launch says how many
  std::vector<uint8_t> values;    // empty: zeros
};

struct ModuleText {
  std::vector<FunctionText> functions;
  std::vector<VariableText> variables;
};

// Throws Refused. `file` is for messages.
ModuleText parse(const std::string& file, const std::string& text);

// ".align 8 .b8 name[16]", without a leading dot-word such as .param or .shared.
ParameterText parse_variable(const std::string& file, uint32_t line, const std::string& text);

std::vector<std::string> split_operands(const std::string& text);
[[noreturn]] void refuse(const std::string& file, uint32_t line, const std::string& what);

}  // namespace orrery::ptx
