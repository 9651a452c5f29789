// From a module's statements to kernels that run: registers become offsets, constants become 32 lanes, labels become numbers, and functions
// that a kernel calls become part of it. What is not known is refused, with file, line and kernel.
#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "tests/ptx/executor/memory.h"
#include "tests/ptx/executor/parse.h"
#include "tests/ptx/executor/program.h"

namespace orrery::ptx {

const Table& meanings() {
  static const Table table = [] {
    Table t;
    add_integer(&t), add_floating(&t), add_conversions(&t), add_moves(&t), add_exchanges(&t), add_products(&t);
    return t;
  }();
  return table;
}

namespace {

unsigned bits_of_letter(char letter) { return letter == 'h' ? 16 : letter == 'w' ? 32 : letter == 'q' ? 64 : 0; }

uint32_t aligned(uint32_t at, uint32_t align) { return (at + align - 1) / align * align; }
// A place that is aligned as asked, and not better: so a wider access than the array allows for is caught. 16 bytes are the widest access.
uint32_t barely_aligned(uint32_t at, uint32_t align) {
  at = aligned(at, align);
  return align < 16 && at % (2 * align) == 0 ? at + align : at;
}

// A variable of the module in device memory.
struct Variable {
  std::vector<std::byte> storage;
  std::byte* at = nullptr;
  size_t bytes = 0;
};

std::vector<std::string> parts_of(const std::string& mnemonic) {
  std::vector<std::string> parts;
  for (size_t at = 0; at <= mnemonic.size();) {
    const size_t dot = std::min(mnemonic.find('.', at), mnemonic.size());
    parts.push_back(mnemonic.substr(at, dot - at));
    at = dot + 1;
  }
  return parts;
}

bool braced(const std::string& operand) { return !operand.empty() && operand[0] == '{'; }

}  // namespace

struct Module::Text {
  std::string file;
  ModuleText parsed;
  std::map<std::string, const FunctionText*> functions;
  std::map<std::string, Variable> variables;
};

namespace {

// Decodes one kernel.
class Decoder {
 public:
  Decoder(const std::string& file, const std::map<std::string, const FunctionText*>& functions, const ModuleText& module,
          const std::map<std::string, Variable>& variables, Kernel* kernel)
      : file_(file), functions_(functions), module_(module), variables_(variables), kernel_(*kernel) {}

  void decode(const FunctionText& entry) {
    kernel_.file = file_;
    kernel_.name = entry.name;
    kernel_.max_threads = entry.max_threads;
    Frame frame;
    for (const ParameterText& p : entry.parameters) {
      const uint32_t at = aligned(kernel_.parameter_bytes, p.align);
      kernel_.parameters.push_back({p.name, at, p.bytes});
      kernel_.parameter_bytes = at + p.bytes;
    }
    decode_body(entry, &frame);
    Instruction end = {};
    end.flow = Flow::exit;
    end.counted = Class::control;
    kernel_.code.push_back(end);
    kernel_.dynamic_shared_at = aligned(kernel_.placed_shared_bytes, 16);
  }

 private:
  struct Register {
    char letter;
    int32_t at;
  };
  struct Family {
    std::string prefix;
    char letter;
    int32_t first, count;
  };
  struct Scope {
    std::map<std::string, Register> names;
    std::vector<Family> families;
  };
  // A function that is being decoded: the kernel, or one that it calls.
  struct Frame {
    bool called = false;
    std::vector<Scope> scopes{1};
    std::map<std::string, uint32_t> labels;
    std::vector<std::pair<size_t, std::string>> branches;
    std::map<std::string, uint32_t> locals;      // arrays in local memory: where
    std::map<std::string, uint32_t> parameters;  // of a call, in local memory too
    std::map<std::string, uint32_t> shared;
    std::vector<size_t> returns;
  };

  [[noreturn]] void refuse_here(const std::string& what) const { refuse(file_, line_, what + ", in " + kernel_.name); }

  int32_t new_register(char letter) {
    if (letter == 'p') return static_cast<int32_t>(kernel_.n_predicates++);
    const uint32_t bytes = kLanes * bits_of_letter(letter) / 8;
    const int32_t at = static_cast<int32_t>(kernel_.register_bytes);
    kernel_.register_bytes += bytes;
    return at;
  }
  uint32_t new_local(uint32_t align, uint32_t bytes) {
    const uint32_t at = barely_aligned(kernel_.local_bytes, align);
    kernel_.local_bytes = at + bytes;
    return at;
  }
  uint32_t new_shared(uint32_t align, uint32_t bytes) {
    kernel_.static_shared_bytes = aligned(kernel_.static_shared_bytes, align) + bytes;
    const uint32_t at = barely_aligned(kernel_.placed_shared_bytes, align);
    kernel_.placed_shared_bytes = at + bytes;
    return at;
  }

  void declare_registers(const std::string& text, Frame* frame) {
    const size_t space = text.find_first_of(" \t");
    const std::string type = text.substr(0, space);
    const char letter = type == ".pred"                        ? 'p'
                        : type.find("16") != std::string::npos ? 'h'
                        : type.find("32") != std::string::npos ? 'w'
                        : type.find("64") != std::string::npos ? 'q'
                                                               : '\0';
    if (letter == '\0' || space == std::string::npos) refuse_here("registers of type " + type);
    for (const std::string& name : split_operands(text.substr(space))) {
      Scope& scope = frame->scopes.back();
      const size_t bracket = name.find('<');
      if (bracket == std::string::npos) {
        scope.names[name] = {letter, new_register(letter)};
        continue;
      }
      const int32_t count = std::atoi(name.c_str() + bracket + 1);
      Family family{name.substr(0, bracket), letter, 0, count};
      for (int32_t i = 0; i < count; ++i) {
        const int32_t at = new_register(letter);
        if (i == 0) family.first = at;
      }
      scope.families.push_back(family);
    }
  }

  Register find_register(const std::string& name, const Frame& frame) const {
    size_t digits = name.size();
    while (digits > 0 && std::isdigit(static_cast<unsigned char>(name[digits - 1]))) --digits;
    for (size_t s = frame.scopes.size(); s-- > 0;) {
      const Scope& scope = frame.scopes[s];
      if (const auto found = scope.names.find(name); found != scope.names.end()) return found->second;
      if (digits == name.size()) continue;
      for (const Family& f : scope.families) {
        if (name.compare(0, digits, f.prefix) != 0 || digits != f.prefix.size()) continue;
        const int32_t i = std::atoi(name.c_str() + digits);
        const int32_t each = f.letter == 'p' ? 1 : static_cast<int32_t>(kLanes * bits_of_letter(f.letter) / 8);
        if (i < f.count) return {f.letter, f.first + i * each};
      }
    }
    refuse_here("a register that is not declared: " + name);
  }

  int32_t constant(char letter, uint64_t value) {
    const unsigned bytes = bits_of_letter(letter) / 8;
    if (bytes < 8) value &= (uint64_t{1} << 8 * bytes) - 1;
    const auto key = std::make_pair(letter, value);
    if (const auto found = constants_.find(key); found != constants_.end()) return found->second;
    const int32_t at = static_cast<int32_t>(kernel_.constants.size());
    kernel_.constants.resize(kernel_.constants.size() + size_t{bytes} * kLanes);
    for (unsigned l = 0; l < kLanes; ++l) std::memcpy(kernel_.constants.data() + at + l * bytes, &value, bytes);
    return constants_[key] = ~at;
  }

  bool number(const std::string& text, uint64_t* value) const {
    if (text.empty()) return false;
    char* end = nullptr;
    if (text.size() > 2 && text[0] == '0' && (text[1] == 'f' || text[1] == 'F' || text[1] == 'd' || text[1] == 'D')) {
      *value = std::strtoull(text.c_str() + 2, &end, 16);
    } else if (text[0] == '-') {
      *value = static_cast<uint64_t>(std::strtoll(text.c_str(), &end, 0));
    } else {
      *value = std::strtoull(text.c_str(), &end, 0);
    }
    return *end == '\0' || std::strcmp(end, "U") == 0;
  }

  // The value of a name: an offset in its space, or an address in global memory.
  bool symbol(const std::string& name, Frame* frame, Space* space, uint64_t* value) {
    for (const Parameter& p : kernel_.parameters)
      if (p.name == name) return *space = Space::parameter, *value = p.offset, true;
    if (const auto l = frame->locals.find(name); l != frame->locals.end()) return *space = Space::local, *value = l->second, true;
    if (const auto p = frame->parameters.find(name); p != frame->parameters.end()) return *space = Space::local, *value = p->second, true;
    if (const auto s = frame->shared.find(name); s != frame->shared.end()) return *space = Space::shared, *value = s->second, true;
    if (const auto v = variables_.find(name); v != variables_.end())
      return *space = Space::global, *value = reinterpret_cast<uint64_t>(v->second.at), true;
    for (const VariableText& v : module_.variables) {
      if (v.name != name || v.space != "shared") continue;
      *value = v.bytes == 0 ? kDynamic : frame->shared[name] = new_shared(v.align, v.bytes);
      return *space = Space::shared, true;
    }
    return false;
  }

  // A source operand.
  int32_t source(char letter, const std::string& text, Frame* frame) {
    if (!text.empty() && text[0] == '%') {
      const Register r = find_register(text, *frame);
      if (r.letter != letter) refuse_here("a register of another width than the instruction's: " + text);
      return r.at;
    }
    uint64_t value = 0;
    if (number(text, &value)) {
      if (letter == 'p') return value ? kTrue : kFalse;
      return constant(letter, value);
    }
    Space space;
    if (letter != 'p' && symbol(text, frame, &space, &value)) {
      if (frame->parameters.count(text)) refuse_here("the address of a call's parameter");
      return constant(letter, value);
    }
    refuse_here("an operand that is not known: " + text);
  }
  int32_t destination(char letter, const std::string& text, Frame* frame) {
    const Register r = find_register(text, *frame);
    if (r.letter != letter) refuse_here("a register of another width than the instruction's: " + text);
    return r.at;
  }

  // "[%rd1+16]": a register or a name, and what is added.
  struct Address {
    int32_t operand = 0;
    bool wide = false;
    int64_t offset = 0;
    Space symbol_space = Space::generic;
  };
  Address address(const std::string& text, Frame* frame) {
    if (text.size() < 2 || text[0] != '[' || text.back() != ']') refuse_here("an address that is not understood: " + text);
    std::string base = text.substr(1, text.size() - 2);
    Address a;
    if (const size_t plus = base.find('+'); plus != std::string::npos) {
      uint64_t value = 0;
      if (!number(base.substr(plus + 1), &value)) refuse_here("an address that is not understood: " + text);
      a.offset = static_cast<int64_t>(value);
      base.erase(plus);
    }
    while (!base.empty() && base.back() == ' ') base.pop_back();
    if (base[0] == '%') {
      const Register r = find_register(base, *frame);
      if (r.letter != 'w' && r.letter != 'q') refuse_here("an address in " + base);
      a.operand = r.at, a.wide = r.letter == 'q';
    } else {
      uint64_t value = 0;
      if (!number(base, &value) && !symbol(base, frame, &a.symbol_space, &value)) refuse_here("a name that is not known: " + base);
      a.operand = constant('q', value), a.wide = true;
    }
    return a;
  }

  static std::vector<std::string> flat(const std::vector<std::string>& operands) {
    std::vector<std::string> out;
    for (const std::string& o : operands) {
      if (!braced(o)) out.push_back(o);
      else
        for (const std::string& inner : split_operands(o.substr(1, o.size() - 2))) out.push_back(inner);
    }
    return out;
  }

  void decode_memory(const Statement& s, Frame* frame, Instruction* i) {
    const std::vector<std::string> parts = parts_of(s.word), &operands = s.operands;
    if (parts[0] != "ld" && parts[0] != "st" && parts[0] != "atom" && parts[0] != "ldmatrix" && parts[0] != "cp")
      refuse_here("the instruction " + s.word);
    if (parts[0] == "cp") {
      if (!memory_instruction(parts, 32, i)) refuse_here("the instruction " + s.word);
      if (operands.size() != 4 || operands[2] != "16") refuse_here(s.word + " of another size than 16");
      const Address to = address(operands[0], frame), from = address(operands[1], frame);
      i->operand[kAddress] = to.operand, i->offset = to.offset, i->address_64 = to.wide;
      i->operand[kFromAddress] = from.operand, i->from_offset = from.offset;
      if (!from.wide) refuse_here("a 32-bit address in global memory");
      i->operand[kFromBytes] = source('w', operands[3], frame);
      return;
    }
    const bool stores = parts[0] == "st";
    if (operands.size() != (parts[0] == "atom" ? 3u : 2u)) refuse_here(s.word + " with another number of operands");
    const std::vector<std::string> values = flat({operands[stores ? 1 : 0]});
    char letter = '\0';
    for (const std::string& v : values)
      if (v[0] == '%') letter = find_register(v, *frame).letter;
    if (letter == '\0') {  // a store of constants: their width is the type's
      const std::string& type = parts.back();
      const int bits = std::atoi(type.c_str() + 1);
      letter = bits == 64 ? 'q' : bits == 32 ? 'w' : 'h';
    }
    if (!memory_instruction(parts, bits_of_letter(letter), i)) refuse_here("the instruction " + s.word);
    if (values.size() != i->n_values) refuse_here(s.word + " with another number of registers");
    for (size_t k = 0; k < values.size(); ++k)
      i->operand[k] = stores ? source(letter, values[k], frame) : destination(letter, values[k], frame);
    const Address a = address(operands[stores ? 0 : 1], frame);
    i->operand[kAddress] = a.operand, i->offset = a.offset, i->address_64 = a.wide;
    if (i->space == Space::parameter && a.symbol_space == Space::local) i->space = Space::local;  // of a call
    if (stores && i->space == Space::parameter) refuse_here("a store to a kernel's parameters");
    if (parts[0] == "atom") i->operand[kAdded] = source(letter, operands[2], frame);
    if (parts[0] != "ld" && parts[0] != "ldmatrix" && i->space != Space::local)
      kernel_.granule = std::min(kernel_.granule, unsigned{i->value_bytes} * i->n_values);
  }

  void decode_instruction(const Statement& s, Frame* frame) {
    Instruction i;
    i.line = s.line;
    i.used_bytes = std::exchange(used_bytes_, ~0u);
    if (!s.guard.empty()) {
      i.guard_negated = s.guard[0] == '!';
      i.guard = static_cast<int16_t>(source('p', s.guard.substr(i.guard_negated ? 1 : 0), frame));
    }
    const std::string& word = s.word;
    if (word == "call.uni" || word == "call") return decode_call(s, frame);
    const Table& table = meanings();
    std::string key = word;
    std::vector<std::string> operands = s.operands;
    if (word.compare(0, 4, "mov.") == 0 && operands.size() == 2) {
      if (braced(operands[0])) key += " {}=";
      else if (braced(operands[1])) key += " ={}";
      else if (operands[1][0] == '%' && table.count(word + " " + operands[1])) key += " " + operands[1], operands.pop_back();
    } else if (word == "bar.sync" && operands.size() == 1) {
      key += " " + operands[0], operands.clear();
    } else if (word.compare(0, 4, "cvt.") == 0) {
      key += " ";
      for (size_t k = 1; k < operands.size(); ++k) key += find_register(operands[k], *frame).letter;
    }
    const auto found = table.find(key);
    if (found == table.end()) {
      decode_memory(s, frame, &i);
      kernel_.code.push_back(i);
      return;
    }
    const Meaning& meaning = found->second;
    i.execute = meaning.execute, i.flow = meaning.flow, i.counted = meaning.counted, i.mask_at = meaning.mask_at;
    i.traffic = meaning.traffic, i.form = meaning.operands.c_str();
    if (i.flow == Flow::branch) {
      if (operands.size() != 1) refuse_here("a branch without a label");
      frame->branches.emplace_back(kernel_.code.size(), operands[0]);
      kernel_.code.push_back(i);
      return;
    }
    if (word == "ret" && frame->called) {
      i.flow = Flow::branch;
      frame->returns.push_back(kernel_.code.size());
    }
    decode_operands(meaning.operands, flat(operands), word, frame, &i);
    kernel_.code.push_back(i);
  }

  void decode_operands(const std::string& letters, std::vector<std::string> operands, const std::string& word, Frame* frame,
                       Instruction* i) {
    std::string in = letters;
    if (const size_t bar = in.find('|'); bar != std::string::npos) {  // w|p: the predicate may be absent
      in.erase(bar, 1);
      const size_t at = operands.empty() ? std::string::npos : operands[0].find('|');
      const std::string second = at == std::string::npos ? "" : operands[0].substr(at + 1);
      if (at != std::string::npos) operands[0].erase(at);
      operands.insert(operands.begin() + (operands.empty() ? 0 : 1), second);
    }
    const size_t equals = in.find('=');
    in.erase(equals, 1);
    if (operands.size() != in.size()) refuse_here(word + " with " + std::to_string(operands.size()) + " operands");
    for (size_t k = 0; k < in.size(); ++k) {
      if (operands[k].empty()) i->operand[k] = unread_predicate();
      else i->operand[k] = k < equals ? destination(in[k], operands[k], frame) : source(in[k], operands[k], frame);
    }
  }
  int32_t unread_predicate() {
    if (unread_ < 0) unread_ = new_register('p');
    return unread_;
  }

  // call (result), function, (arguments): the function becomes part of the kernel. Its parameters lie in local memory.
  void decode_call(const Statement& s, Frame* caller) {
    if (s.operands.size() != 3 || !s.guard.empty()) refuse_here("a call of this form");
    const auto inside = [](const std::string& text) { return split_operands(text.substr(1, text.size() - 2)); };
    const std::vector<std::string> results = inside(s.operands[0]), arguments = inside(s.operands[2]);
    const auto found = functions_.find(s.operands[1]);
    if (found == functions_.end() || found->second->entry) refuse_here("a call of " + s.operands[1]);
    const FunctionText& f = *found->second;
    if (results.size() != 1 || arguments.size() != f.parameters.size() || ++depth_ > 8) refuse_here("a call of this form");
    Frame frame;
    frame.called = true;
    const auto place_of = [&](const std::string& name) {
      const auto at = caller->parameters.find(name);
      if (at == caller->parameters.end()) refuse_here("a call with " + name);
      return at->second;
    };
    frame.parameters[f.result.name] = place_of(results[0]);
    for (size_t k = 0; k < arguments.size(); ++k) frame.parameters[f.parameters[k].name] = place_of(arguments[k]);
    decode_body(f, &frame);
    for (const size_t at : frame.returns) kernel_.code[at].target = static_cast<uint32_t>(kernel_.code.size());
    --depth_;
  }

  void decode_body(const FunctionText& f, Frame* frame) {
    for (const Statement& s : f.body) {
      line_ = s.line;
      switch (s.kind) {
        case Statement::open: frame->scopes.emplace_back(); break;
        case Statement::close: frame->scopes.pop_back(); break;
        case Statement::label: frame->labels[s.word] = static_cast<uint32_t>(kernel_.code.size()); break;
        case Statement::instruction: decode_instruction(s, frame); break;
        case Statement::directive:
          if (s.word == "reg") {
            declare_registers(s.text, frame);
          } else if (s.word == "shared" || s.word == "local" || s.word == "param") {
            const ParameterText v = parse_variable(file_, s.line, s.text);
            if (s.word == "shared") frame->shared[v.name] = new_shared(v.align, v.bytes);
            else (s.word == "local" ? frame->locals : frame->parameters)[v.name] = new_local(v.align, v.bytes);
          } else if (s.word == "pragma") {
            const size_t at = s.text.find("used_bytes_mask ");
            if (at != std::string::npos) used_bytes_ = static_cast<uint32_t>(std::strtoul(s.text.c_str() + at + 16, nullptr, 0));
            else if (s.text.find("nounroll") == std::string::npos) refuse_here("the pragma " + s.text);
          } else if (s.word != "loc") {
            refuse_here("the directive ." + s.word);
          }
      }
    }
    for (const auto& [at, label] : frame->branches) {
      const auto to = frame->labels.find(label);
      line_ = kernel_.code[at].line;
      if (to == frame->labels.end()) refuse_here("a branch to a label that is not there: " + label);
      kernel_.code[at].target = to->second;
    }
  }

  // The dynamic array's place is known only when the static ones are: until then its constant has this value.
  static constexpr uint64_t kDynamic = 0x7FFFFFF0;

  const std::string& file_;
  const std::map<std::string, const FunctionText*>& functions_;
  const ModuleText& module_;
  const std::map<std::string, Variable>& variables_;
  Kernel& kernel_;
  std::map<std::pair<char, uint64_t>, int32_t> constants_;
  uint32_t line_ = 0, used_bytes_ = ~0u;
  int32_t unread_ = -1;
  int depth_ = 0;

 public:
  // Puts the dynamic array's address where kDynamic stands.
  void place_dynamic() {
    for (const auto& [key, at] : constants_) {
      if (key.second != kDynamic) continue;
      const unsigned bytes = bits_of_letter(key.first) / 8;
      const uint64_t value = kernel_.dynamic_shared_at;
      for (unsigned l = 0; l < kLanes; ++l) std::memcpy(kernel_.constants.data() + ~at + l * bytes, &value, bytes);
    }
  }
};

}  // namespace

Module::Module(std::string file, std::string text) : text_(std::make_unique<Text>()) {
  text_->file = std::move(file);
  text_->parsed = parse(text_->file, text);
  for (const FunctionText& f : text_->parsed.functions) text_->functions[f.name] = &f;
  for (const VariableText& v : text_->parsed.variables) {
    if (v.space == "shared") continue;
    Variable& made = text_->variables[v.name];
    made.bytes = v.bytes;
    made.storage.resize(v.bytes + 3 * size_t{v.align} + 16);
    const uint64_t begin = reinterpret_cast<uint64_t>(made.storage.data());
    uint64_t at = (begin + v.align - 1) / v.align * v.align;
    if (v.align < 16 && at % (2 * v.align) == 0) at += v.align;
    made.at = made.storage.data() + (at - begin);
    std::copy(v.values.begin(), v.values.end(), reinterpret_cast<uint8_t*>(made.at));
  }
}
Module::~Module() = default;
Module::Module(Module&&) noexcept = default;

std::vector<std::string> Module::entries() const {
  std::vector<std::string> names;
  for (const FunctionText& f : text_->parsed.functions)
    if (f.entry) names.push_back(f.name);
  return names;
}

std::vector<std::pair<const void*, size_t>> Module::variables() const {
  std::vector<std::pair<const void*, size_t>> out;
  for (const auto& [name, v] : text_->variables) out.emplace_back(v.at, v.bytes);
  return out;
}

const Kernel& Module::kernel(const std::string& entry) {
  if (const auto found = kernels_.find(entry); found != kernels_.end()) return found->second;
  const auto f = text_->functions.find(entry);
  if (f == text_->functions.end() || !f->second->entry) refuse(text_->file, 1, "no kernel of the name " + entry);
  Kernel kernel;
  Decoder decoder(text_->file, text_->functions, text_->parsed, text_->variables, &kernel);
  decoder.decode(*f->second);
  decoder.place_dynamic();
  return kernels_.emplace(entry, std::move(kernel)).first->second;
}

}  // namespace orrery::ptx
