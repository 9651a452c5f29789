// /set: shows and changes what an answer depends on. Names are those of the command line without the dashes.
#include <algorithm>

#include "commands/chat.h"
#include "system/failure.h"
#include "terminal/characters.h"

namespace orrery::tool {
namespace {

std::string one_line(std::string text) {
  constexpr size_t kLongest = 60;
  std::replace(text.begin(), text.end(), '\n', ' ');
  if (text.size() <= kLongest) return text;
  size_t cut = kLongest;
  while (cut > 0 && (static_cast<unsigned char>(text[cut]) & 0xC0) == 0x80) --cut;
  return text.substr(0, cut) + "...";
}

std::vector<Sampling::Setting> all_settings(Chat& chat) {
  std::vector<Sampling::Setting> all = chat.sampling().settings();
  all.push_back({"thinking", kThinkingNames[static_cast<size_t>(chat.look().thinking)],
                 "The model's thinking: show (with its markers), dim, fold (one line) or hide"});
  const std::string system = chat.system();
  all.push_back({"system", system.empty() ? "none" : one_line(system), "The system message; - removes it"});
  return all;
}

}  // namespace

void set(Chat& chat, const std::string& argument) {
  const size_t space = argument.find_first_of(" \t=");
  std::string name = argument.substr(0, space);
  name.erase(0, std::min(name.find_first_not_of('-'), name.size()));  // --top-k, as on the command line
  std::replace(name.begin(), name.end(), '_', '-');
  if (name == "temp") name = "temperature";
  std::string value;
  if (space != std::string::npos) value = argument.substr(std::min(argument.find_first_not_of(" \t=", space), argument.size()));
  const std::vector<Sampling::Setting> all = all_settings(chat);
  const auto show = [](const Sampling::Setting& setting) {
    explain(format("  %-18s %-8s", setting.name.c_str(), setting.value.c_str()), 30, setting.help);
  };
  if (argument.empty()) {
    for (const Sampling::Setting& setting : all) show(setting);
    return;
  }
  std::vector<std::string> names;
  for (const Sampling::Setting& setting : all) names.push_back(setting.name);
  if (std::find(names.begin(), names.end(), name) == names.end()) {
    for (const char* fixed : {"context", "kv-type", "kv-budget", "policy", "budget", "threads"}) {
      if (name == fixed) throw UsageError("/set: " + name + " is fixed while a conversation lasts: start again with --" + name);
    }
    const std::string near = nearest(name, names);
    throw UsageError("/set: there is no setting '" + name + "'" + (near.empty() ? "" : "; did you mean " + near + "?") +
                     " (/set lists the settings)");
  }
  if (value.empty()) {
    for (const Sampling::Setting& setting : all) {
      if (setting.name == name) show(setting);
    }
    return;
  }
  if (name == "thinking") {
    chat.look().thinking = static_cast<Thinking>(parse_choice(value, "thinking", kThinkingNames));
  } else if (name == "system") {
    chat.set_system(value == "-" ? "" : value);
  } else {
    chat.sampling().set(name, value);
  }
  for (const Sampling::Setting& setting : all_settings(chat)) {
    if (setting.name == name) say(name + ": " + setting.value);
  }
}

}  // namespace orrery::tool
