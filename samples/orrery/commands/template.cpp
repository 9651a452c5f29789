// orrery template: renders messages through a chat template and prints the exact text that the model reads.
#include "api.h"
#include "command.h"
#include "json_file.h"
#include "settings.h"

namespace orrery::tool {
namespace {

int render(const Args& args, Output& out) {
  const std::string* path = args.find("--messages");
  if (!path) throw UsageError("--messages FILE is missing");
  TemplateSettings settings(args);
  std::string messages = read_text(*path);
  const Json json = parse_json(messages, *path);
  if (json.is_object()) {
    if (!json.contains("messages") || !json["messages"].is_array()) {
      throw Failure(kExitFailure, *path + ": the object has no array \"messages\"");
    }
    if (json.contains("tools") && !json["tools"].is_null() && !args.has("--tools")) {
      settings.set_tools(dump_json(json["tools"], -1));
    }
    messages = dump_json(json["messages"], -1);
  } else if (!json.is_array()) {
    throw Failure(kExitFailure,
                  *path + ": is neither an array of messages nor an object with \"messages\"");
  }
  orrery_template_options options = settings.options();
  options.add_generation_prompt = args.has("--no-generation-prompt") ? 0 : 1;
  const Vocab vocab = open_vocab(model_file(args.words()[0]));
  out.text(sized<std::string>([&](char* text, size_t capacity, size_t* n, orrery_error* error) {
    return orrery_render_chat(vocab.get(), messages.c_str(), &options, text, capacity, n, error);
  }));
  return kExitOk;
}

}  // namespace

const Command& template_command() {
  static const Command command = {
      "template",
      "MODEL.gguf --messages FILE.json [options]",
      "messages as the model reads them",
      "Prints the rendered conversation exactly: a newline at the end is printed only if the template writes one. FILE is a\n"
      "JSON array of messages, [{\"role\": \"user\", \"content\": \"...\"}, ...], or an object with \"messages\" and, if the template\n"
      "reads them, \"tools\". MODEL needs no tensors.\n",
      {{"Options",
        {{"--messages", "FILE", "The messages; - is standard input."},
         {"--no-generation-prompt", nullptr, "Leave out the text that begins the assistant's answer."}}},
       template_group()},
      "  echo '[{\"role\": \"user\", \"content\": \"Hi\"}]' | orrery template model.gguf --messages -\n"
      "  orrery template model.gguf --messages chat.json --tools tools.json --no-think\n",
      1,
      1,
      render};
  return command;
}

}  // namespace orrery::tool
