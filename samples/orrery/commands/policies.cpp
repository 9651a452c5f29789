// orrery policies: the table of KV policies, or one policy's page. All text comes from the library.
#include <algorithm>

#include "api.h"
#include "command.h"
#include "json_file.h"
#include "system/failure.h"

namespace orrery::tool {
namespace {

std::string text_of(const Json& row, const char* key) { return row.at(key).get<std::string>(); }

// Wraps words into lines of at most `width` columns.
std::vector<std::string> wrapped(const std::string& text, size_t width) {
  std::vector<std::string> lines(1);
  for (size_t at = 0; at < text.size();) {
    const size_t space = std::min(text.find(' ', at), text.size());
    const std::string word = text.substr(at, space - at);
    if (!lines.back().empty() && lines.back().size() + 1 + word.size() > width) lines.emplace_back();
    lines.back() += (lines.back().empty() ? "" : " ") + word;
    at = space + 1;
  }
  return lines;
}

struct Column {
  const char *title, *key;
  size_t width;
};
constexpr Column kColumns[] = {{"policy", "name", 14}, {"score", "score", 21},     {"allocate", "allocate", 21},
                               {"keep", "keep", 20},   {"refresh", "refresh", 20}, {"device, beside the budget", "device", 20},
                               {"link", "link", 14}};

// Prints one row of the table; a cell takes as many lines as it needs.
void print_cells(const std::vector<std::string>& cells, Output& out) {
  std::vector<std::vector<std::string>> lines;
  size_t height = 0;
  for (size_t c = 0; c < cells.size(); ++c) {
    lines.push_back(wrapped(cells[c], kColumns[c].width));
    height = std::max(height, lines.back().size());
  }
  for (size_t i = 0; i < height; ++i) {
    std::string line;
    for (size_t c = 0, from = 0; c < cells.size(); ++c) {
      line.resize(from, ' ');
      if (i < lines[c].size()) line += lines[c][i];
      from += kColumns[c].width + 2;
    }
    out.write(line.substr(0, line.find_last_not_of(' ') + 1) + "\n");
  }
}

void print_table(const Json& rows, Output& out) {
  std::vector<std::string> cells;
  for (const Column& column : kColumns) cells.emplace_back(column.title);
  print_cells(cells, out);
  for (const Json& row : rows) {
    cells.clear();
    for (const Column& column : kColumns) cells.push_back(text_of(row, column.key));
    out.write("\n");
    print_cells(cells, out);
    const std::string paper = text_of(row, "paper");
    std::string defaults;
    for (const Json& o : row.at("options")) defaults += (defaults.empty() ? ": " : ", ") + text_of(o, "name") + " " + text_of(o, "default");
    for (const std::string& line : wrapped(text_of(row, "method") + (paper.empty() ? "" : ", " + paper) + defaults, 124))
      out.write("                " + line + "\n");
  }
}

void print_page(const Json& row, Output& out) {
  const std::string paper = text_of(row, "paper");
  out.write(text_of(row, "name") + " - " + text_of(row, "method") + (paper.empty() ? "" : " (" + paper + ")") + "\n\n");
  for (const char* key : {"score", "allocate", "keep", "refresh", "device", "link"})
    out.write(format("  %-9s %s\n", key, text_of(row, key).c_str()));
  out.write("\n" + text_of(row, "page"));
  if (row.at("options").empty()) return;
  out.write("\nOptions (--policy-option NAME=VALUE) and their defaults:\n");
  for (const Json& o : row.at("options"))
    out.write(format("  %-16s %-32s %s\n", text_of(o, "name").c_str(), text_of(o, "default").c_str(), text_of(o, "meaning").c_str()));
}

int print_policies(const Args& args, Output& out) {
  const std::string json = policies();
  const std::string* name = args.find("--explain");
  if (args.has("--json") && name == nullptr) {
    out.write(json + "\n");
    return kExitOk;
  }
  const Json rows = parse_json(json, "the table of policies");
  if (name == nullptr) {
    print_table(rows, out);
    return kExitOk;
  }
  std::vector<std::string> names;
  for (const Json& row : rows) {
    names.push_back(text_of(row, "name"));
    if (names.back() != *name) continue;
    if (args.has("--json")) {
      out.write(dump_json(row, 2) + "\n");
    } else {
      print_page(row, out);
    }
    return kExitOk;
  }
  const std::string near = nearest(*name, names);
  std::string list;
  for (const std::string& n : names) list += (list.empty() ? "" : ", ") + n;
  throw UsageError("--explain: there is no policy '" + *name + "'" + (near.empty() ? "" : " (did you mean '" + near + "'?)") +
                   "; the policies are: " + list);
}

}  // namespace

const Command& policies_command() {
  static const Command command = {
      "policies",
      "[--explain NAME] [--json]",
      "the KV policies: which KV each keeps on the device, and its costs",
      "A policy scores tokens, allocates the budget over layers and heads, selects the tokens that stay, and may refresh the\n"
      "selection. Below each row: the method, its paper, its options and their defaults.\n",
      {{"Options",
        {{"--explain", "NAME", "One policy's page: its method, and our choice where its paper and its code disagree."},
         {"--json", nullptr, "The whole table as JSON, or with --explain that policy's row."}}}},
      "  orrery policies\n"
      "  orrery policies --explain adakv\n",
      0,
      0,
      print_policies};
  return command;
}

}  // namespace orrery::tool
