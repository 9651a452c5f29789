// Package orrery runs language models with long contexts inside your program.
//
//	runtime, err := orrery.NewRuntime(nil)
//	model, err := runtime.Open("model.gguf", nil)
//	chat, err := model.NewSession(nil)
//	err = chat.AddMessage("user", "Why is the sky blue?")
//	answer, err := chat.Generate(ctx, nil)
//	err = answer.Each(func(e orrery.Event) bool { fmt.Print(e.Text); return true })
//
// Options are structs with the fields of include/orrery.h, which documents them; nil means the library's defaults. Handles are
// closed in any order. A Runtime, Model and Vocab may be used by any number of goroutines, a Session by one at a time.
package orrery

/*
#include <stdlib.h>
#include <orrery_lab.h>

// A source is made here, because C may get a pointer to Go's memory as an argument, and not inside of a struct.
static orrery_source source(uint32_t kind, const char *path, const void *memory, uint64_t bytes, int32_t fd, uint64_t offset) {
	orrery_source s;
	orrery_source_init(&s, sizeof s);
	s.kind = kind, s.path = path, s.fd = fd, s.fd_offset = offset;
	if (kind == ORRERY_SOURCE_MEMORY) s.memory = memory, s.memory_bytes = bytes;
	if (kind == ORRERY_SOURCE_FD) s.fd_bytes = bytes;
	return s;
}
static orrery_status inspect_source(uint32_t kind, const char *path, const void *memory, uint64_t bytes, int32_t fd, uint64_t offset,
		char *json, size_t capacity, size_t *n, orrery_error *e) {
	orrery_source s = source(kind, path, memory, bytes, fd, offset);
	return orrery_inspect(&s, json, capacity, n, e);
}
static orrery_status vocab_of_source(uint32_t kind, const char *path, const void *memory, uint64_t bytes, int32_t fd, uint64_t offset,
		orrery_vocab **out, orrery_error *e) {
	orrery_source s = source(kind, path, memory, bytes, fd, offset);
	return orrery_vocab_open(&s, out, e);
}
static orrery_status model_of_source(uint32_t kind, const char *path, const void *memory, uint64_t bytes, int32_t fd, uint64_t offset,
		orrery_runtime *r, const orrery_model_options *o, orrery_model **out, orrery_error *e) {
	orrery_source s = source(kind, path, memory, bytes, fd, offset);
	return orrery_model_open(r, &s, o, out, e);
}
static orrery_status adapter_of_source(uint32_t kind, const char *path, const void *memory, uint64_t bytes, int32_t fd, uint64_t offset,
		orrery_model *m, orrery_adapter **out, orrery_error *e) {
	orrery_source s = source(kind, path, memory, bytes, fd, offset);
	return orrery_adapter_open(m, &s, out, e);
}
static orrery_status plan_of_source(uint32_t kind, const char *path, const void *memory, uint64_t bytes, int32_t fd, uint64_t offset,
		const orrery_runtime_options *r, const orrery_model_options *m, const orrery_session_options *o, orrery_plan_result *out,
		orrery_error *e) {
	orrery_source s = source(kind, path, memory, bytes, fd, offset);
	return orrery_plan(&s, r, m, o, out, e);
}
static orrery_status regions_of_source(uint32_t kind, const char *path, const void *memory, uint64_t bytes, int32_t fd, uint64_t offset,
		const orrery_runtime_options *r, const orrery_model_options *m, const orrery_session_options *o, orrery_plan_region *to,
		size_t capacity, size_t *n, orrery_error *e) {
	orrery_source s = source(kind, path, memory, bytes, fd, offset);
	return orrery_plan_regions(&s, r, m, o, to, capacity, n, e);
}
*/
import "C"

import (
	"runtime"
	"unsafe"
)

type (
	errorOut = *C.orrery_error
	status   = C.orrery_status
)

// AbiVersion is that of the library that is loaded.
func AbiVersion() uint32 { return uint32(C.orrery_abi_version()) }

// Version is that of the library that is loaded.
func Version() string { return C.GoString(C.orrery_version()) }

// BuildInfo tells the library's compiler and instruction sets.
func BuildInfo() string { return C.GoString(C.orrery_build_info()) }

// Source is where a GGUF file lies: a Path, a Descriptor or a Memory.
type Source interface{ parts(k *keep) parts }

// Path is the source of a file by its name.
type Path string

// Descriptor is the source of an open file, or of Bytes of it from Offset on (0: up to its end), such as an asset of an archive. The file
// may be closed behind the call.
type Descriptor struct {
	Fd            uintptr
	Offset, Bytes uint64
}

// Memory is the source of a whole file in memory. A model that is opened from it copies it: C keeps no memory of Go's.
type Memory []byte

// parts are a source as C takes it.
type parts struct {
	kind          C.uint32_t
	path          *C.char
	memory        unsafe.Pointer
	bytes, offset C.uint64_t
	fd            C.int32_t
}

func (p Path) parts(k *keep) parts {
	return parts{kind: C.ORRERY_SOURCE_PATH, path: k.chars(string(p)), fd: -1}
}
func (d Descriptor) parts(k *keep) parts {
	return parts{kind: C.ORRERY_SOURCE_FD, bytes: C.uint64_t(d.Bytes), offset: C.uint64_t(d.Offset), fd: C.int32_t(d.Fd)}
}
func (m Memory) parts(k *keep) parts {
	return parts{kind: C.ORRERY_SOURCE_MEMORY, memory: first(m), bytes: C.uint64_t(len(m)), fd: -1}
}

// KvTypeBytes is the bytes of one token's K and V of one head.
func KvTypeBytes(kvType KvType, keyDim, valueDim uint32) uint64 {
	return uint64(C.orrery_kv_type_bytes(C.uint32_t(kvType), C.uint32_t(keyDim), C.uint32_t(valueDim)))
}

// Inspect describes a file, as JSON.
func Inspect(path string) (string, error) { return InspectFrom(Path(path)) }

// InspectFrom is Inspect of any source.
func InspectFrom(source Source) (string, error) {
	k := newKeep()
	defer k.free()
	f := source.parts(k)
	if k.err != nil {
		return "", k.err
	}
	return text(sized(func(to *byte, capacity C.size_t, n *C.size_t, e errorOut) status {
		return C.inspect_source(f.kind, f.path, f.memory, f.bytes, f.fd, f.offset, (*C.char)(unsafe.Pointer(to)), capacity, n, e)
	}))
}

// Policies is the table of KV policies, as JSON.
func Policies() (string, error) {
	return text(sized(func(to *byte, capacity C.size_t, n *C.size_t, e errorOut) status {
		return C.orrery_policies((*C.char)(unsafe.Pointer(to)), capacity, n, e)
	}))
}

// HeadProfileImport checks a head profile of any format, and returns it as Calibration.Profile would.
func HeadProfileImport(profileJSON string) (string, error) {
	k := newKeep()
	defer k.free()
	profile := k.chars(profileJSON)
	return text(sized(func(to *byte, capacity C.size_t, n *C.size_t, e errorOut) status {
		return C.orrery_head_profile_import(profile, (*C.char)(unsafe.Pointer(to)), capacity, n, e)
	}))
}

// HeadProfileImportGates makes a head profile of DuoAttention's gates.
func HeadProfileImportGates(gates string, sparsity float64) (string, error) {
	k := newKeep()
	defer k.free()
	lines := k.chars(gates)
	return text(sized(func(to *byte, capacity C.size_t, n *C.size_t, e errorOut) status {
		return C.orrery_head_profile_import_gates(lines, C.double(sparsity), (*C.char)(unsafe.Pointer(to)), capacity, n, e)
	}))
}

// Plan tells what a model and a session would take, from the file's header alone.
func Plan(path string, runtime *RuntimeOptions, model *ModelOptions, session *SessionOptions) (PlanResult, error) {
	return PlanFrom(Path(path), runtime, model, session)
}

// PlanFrom is Plan of any source.
func PlanFrom(source Source, runtime *RuntimeOptions, model *ModelOptions, session *SessionOptions) (PlanResult, error) {
	k := newKeep()
	defer k.free()
	defer k.callbacks.release()
	f, r, m, s := source.parts(k), runtime.c(k), model.c(k), session.c(k)
	if k.err != nil {
		return PlanResult{}, k.err
	}
	return fillPlanResult(func(out *C.orrery_plan_result) error {
		return call(func(e errorOut) status {
			return C.plan_of_source(f.kind, f.path, f.memory, f.bytes, f.fd, f.offset, r, m, s, out, e)
		})
	})
}

// PlanRegions tells the same region by region: its sums are those of Plan.
func PlanRegions(path string, runtime *RuntimeOptions, model *ModelOptions, session *SessionOptions) ([]PlanRegion, error) {
	return PlanRegionsFrom(Path(path), runtime, model, session)
}

// PlanRegionsFrom is PlanRegions of any source.
func PlanRegionsFrom(source Source, runtime *RuntimeOptions, model *ModelOptions, session *SessionOptions) (regions []PlanRegion, err error) {
	k := newKeep()
	defer k.free()
	defer k.callbacks.release()
	f, r, m, s := source.parts(k), runtime.c(k), model.c(k), session.c(k)
	if k.err != nil {
		return nil, k.err
	}
	all, err := sized(func(to *C.orrery_plan_region, capacity C.size_t, n *C.size_t, e errorOut) status {
		return C.regions_of_source(f.kind, f.path, f.memory, f.bytes, f.fd, f.offset, r, m, s, to, capacity, n, e)
	})
	for i := range all {
		region, _ := fillPlanRegion(func(out *C.orrery_plan_region) error { *out = all[i]; return nil })
		regions = append(regions, region)
	}
	return regions, err
}

// Runtime is threads, the device and its arena.
type Runtime struct {
	*handle
	log *callbacks
}

func NewRuntime(options *RuntimeOptions) (*Runtime, error) {
	if err := checkABI(); err != nil {
		return nil, err
	}
	k := newKeep()
	defer k.free()
	o, out := options.c(k), new(*C.orrery_runtime)
	if k.err != nil {
		return nil, k.err
	}
	// The log function lives as long as what may call it: models and sessions keep it.
	runtime.SetFinalizer(k.callbacks, func(c *callbacks) { c.release() })
	if err := call(func(e errorOut) status { return C.orrery_runtime_create(o, out, e) }); err != nil {
		return nil, err
	}
	free := func(p unsafe.Pointer) { C.orrery_runtime_free((*C.orrery_runtime)(p)) }
	return &Runtime{newHandle(unsafe.Pointer(*out), free), k.callbacks}, nil
}

func (r *Runtime) Info() (info RuntimeInfo, err error) {
	return fillRuntimeInfo(func(out *C.orrery_runtime_info) error {
		return r.call(func(p unsafe.Pointer, e errorOut) status {
			return C.orrery_runtime_get_info((*C.orrery_runtime)(p), out, e)
		})
	})
}

// Open opens a GGUF file. A Progress function that returns false cancels.
func (r *Runtime) Open(path string, options *ModelOptions) (*Model, error) {
	return r.OpenFrom(Path(path), options)
}

// OpenFrom is Open of any source.
func (r *Runtime) OpenFrom(source Source, options *ModelOptions) (*Model, error) {
	if _, ok := source.(Memory); ok {
		copied := DefaultModelOptions()
		if options != nil {
			copied = *options
		}
		copied.Load = LoadModeRead
		options = &copied
	}
	k := newKeep()
	defer k.free()
	defer k.callbacks.release()
	f, o, out := source.parts(k), options.c(k), new(*C.orrery_model)
	if k.err != nil {
		return nil, k.err
	}
	err := r.use(func(p unsafe.Pointer) error {
		return k.callbacks.call(func(e errorOut) status {
			return C.model_of_source(f.kind, f.path, f.memory, f.bytes, f.fd, f.offset, (*C.orrery_runtime)(p), o, out, e)
		})
	})
	if err != nil {
		return nil, err
	}
	free := func(p unsafe.Pointer) { C.orrery_model_free((*C.orrery_model)(p)) }
	return &Model{newHandle(unsafe.Pointer(*out), free), r.log}, nil
}

// SetThreads changes the number of threads and their priority between two steps; 0 is the default number.
func (r *Runtime) SetThreads(n int32, priority Priority) error {
	return r.call(func(p unsafe.Pointer, e errorOut) status {
		return C.orrery_runtime_set_threads((*C.orrery_runtime)(p), C.int32_t(n), C.int32_t(priority), e)
	})
}

// Devices are the GPUs of this machine; RuntimeOptions.Device is an index of them.
func Devices() (devices []DeviceInfo, err error) {
	for i := C.size_t(0); i < C.orrery_devices(); i++ {
		device, err := fillDeviceInfo(func(out *C.orrery_device_info) error {
			return call(func(e errorOut) status { return C.orrery_device_get_info(i, out, e) })
		})
		if err != nil {
			return nil, err
		}
		devices = append(devices, device)
	}
	return devices, nil
}

// Vocab is the tokenizer and the chat template on their own.
type Vocab struct{ *handle }

func newVocab(p *C.orrery_vocab) *Vocab {
	return &Vocab{newHandle(unsafe.Pointer(p), func(p unsafe.Pointer) { C.orrery_vocab_free((*C.orrery_vocab)(p)) })}
}

// OpenVocab opens the vocabulary of a GGUF file.
func OpenVocab(path string) (*Vocab, error) { return OpenVocabFrom(Path(path)) }

// OpenVocabFrom is OpenVocab of any source.
func OpenVocabFrom(source Source) (*Vocab, error) {
	if err := checkABI(); err != nil {
		return nil, err
	}
	k := newKeep()
	defer k.free()
	f := source.parts(k)
	if k.err != nil {
		return nil, k.err
	}
	out := new(*C.orrery_vocab)
	if err := call(func(e errorOut) status {
		return C.vocab_of_source(f.kind, f.path, f.memory, f.bytes, f.fd, f.offset, out, e)
	}); err != nil {
		return nil, err
	}
	return newVocab(*out), nil
}

func (v *Vocab) Info() (VocabInfo, error) {
	return fillVocabInfo(func(out *C.orrery_vocab_info) error {
		return v.call(func(p unsafe.Pointer, e errorOut) status {
			return C.orrery_vocab_get_info((*C.orrery_vocab)(p), out, e)
		})
	})
}

func (v *Vocab) Tokenize(text string, flags TokenizeFlags) ([]int32, error) {
	k := newKeep()
	defer k.free()
	data := (*C.char)(C.CBytes([]byte(text + "\x00")))
	k.pointers = append(k.pointers, unsafe.Pointer(data))
	return sizedOf(v.handle, func(p unsafe.Pointer, to *int32, capacity C.size_t, n *C.size_t, e errorOut) status {
		return C.orrery_tokenize((*C.orrery_vocab)(p), data, C.size_t(len(text)), C.uint32_t(flags), (*C.int32_t)(to), capacity, n, e)
	})
}

// Detokenize returns the bytes that the tokens stand for, possibly ending inside a character.
func (v *Vocab) Detokenize(tokens []int32, flags DetokenizeFlags) ([]byte, error) {
	ids := (*C.int32_t)(first(tokens))
	return sizedOf(v.handle, func(p unsafe.Pointer, to *byte, capacity C.size_t, n *C.size_t, e errorOut) status {
		return C.orrery_detokenize((*C.orrery_vocab)(p), ids, C.size_t(len(tokens)), C.uint32_t(flags),
			(*C.char)(unsafe.Pointer(to)), capacity, n, e)
	})
}

func (v *Vocab) TokenFlags(token int32) (flags TokenFlags) {
	v.use(func(p unsafe.Pointer) error {
		flags = TokenFlags(C.orrery_token_flags((*C.orrery_vocab)(p), C.int32_t(token)))
		return nil
	})
	return flags
}

func (v *Vocab) RenderChat(messagesJSON string, options *TemplateOptions) (string, error) {
	k := newKeep()
	defer k.free()
	messages, o := k.chars(messagesJSON), options.c(k)
	if k.err != nil {
		return "", k.err
	}
	return text(sizedOf(v.handle, func(p unsafe.Pointer, to *byte, capacity C.size_t, n *C.size_t, e errorOut) status {
		return C.orrery_render_chat((*C.orrery_vocab)(p), messages, o, (*C.char)(unsafe.Pointer(to)), capacity, n, e)
	}))
}

// ChatFormat describes as JSON how the template has reasoning and calls of tools written: "calls" is null where "why_none" says why.
func (v *Vocab) ChatFormat(options *TemplateOptions) (string, error) {
	k := newKeep()
	defer k.free()
	o := options.c(k)
	if k.err != nil {
		return "", k.err
	}
	return text(sizedOf(v.handle, func(p unsafe.Pointer, to *byte, capacity C.size_t, n *C.size_t, e errorOut) status {
		return C.orrery_chat_format((*C.orrery_vocab)(p), o, (*C.char)(unsafe.Pointer(to)), capacity, n, e)
	}))
}

// Model is immutable; any number of goroutines may use it.
type Model struct {
	*handle
	log *callbacks
}

func (m *Model) Info() (ModelInfo, error) {
	return fillModelInfo(func(out *C.orrery_model_info) error {
		return m.call(func(p unsafe.Pointer, e errorOut) status {
			return C.orrery_model_get_info((*C.orrery_model)(p), out, e)
		})
	})
}

// Layer describes layer i, from 0 to NLayers - 1: layers may differ in their heads, windows, states and experts.
func (m *Model) Layer(i uint32) (LayerInfo, error) {
	return fillLayerInfo(func(out *C.orrery_layer_info) error {
		return m.call(func(p unsafe.Pointer, e errorOut) status {
			return C.orrery_model_layer_info((*C.orrery_model)(p), C.uint32_t(i), out, e)
		})
	})
}

// Experts tells where a mixture's experts lie, and what the link brought.
func (m *Model) Experts() (ExpertsInfo, error) {
	return fillExpertsInfo(func(out *C.orrery_experts_info) error {
		return m.call(func(p unsafe.Pointer, e errorOut) status {
			return C.orrery_model_experts((*C.orrery_model)(p), out, e)
		})
	})
}

// Streaming tells which layers lie in host memory, and what the link brought of them.
func (m *Model) Streaming() (StreamingInfo, error) {
	return fillStreamingInfo(func(out *C.orrery_streaming_info) error {
		return m.call(func(p unsafe.Pointer, e errorOut) status {
			return C.orrery_model_streaming((*C.orrery_model)(p), out, e)
		})
	})
}

func (m *Model) Vocab() (vocab *Vocab, err error) {
	err = m.use(func(p unsafe.Pointer) error {
		raw := C.orrery_model_vocab((*C.orrery_model)(p))
		if raw == nil {
			return &Error{Status: StatusOutOfHostMemory, Message: "no memory for a vocabulary"}
		}
		vocab = newVocab(raw)
		return nil
	})
	return vocab, err
}

func (m *Model) NewSession(options *SessionOptions) (*Session, error) {
	k := newKeep()
	defer k.free()
	o, out := options.c(k), new(*C.orrery_session)
	if k.err != nil {
		return nil, k.err
	}
	info, err := m.Info()
	if err != nil {
		return nil, err
	}
	err = m.call(func(p unsafe.Pointer, e errorOut) status {
		return C.orrery_session_open((*C.orrery_model)(p), o, out, e)
	})
	if err != nil {
		return nil, err
	}
	return newSession(*out, int(info.NVocab), int(info.NEmbd), m.log), nil
}

// Adapter is a LoRA adapter of a model. Sessions keep the adapters that they have.
type Adapter struct{ *handle }

// OpenAdapter opens a LoRA adapter of the model.
func (m *Model) OpenAdapter(path string) (*Adapter, error) { return m.OpenAdapterFrom(Path(path)) }

// OpenAdapterFrom is OpenAdapter of any source, which may go afterwards.
func (m *Model) OpenAdapterFrom(source Source) (*Adapter, error) {
	k := newKeep()
	defer k.free()
	f, out := source.parts(k), new(*C.orrery_adapter)
	if k.err != nil {
		return nil, k.err
	}
	err := m.call(func(p unsafe.Pointer, e errorOut) status {
		return C.adapter_of_source(f.kind, f.path, f.memory, f.bytes, f.fd, f.offset, (*C.orrery_model)(p), out, e)
	})
	if err != nil {
		return nil, err
	}
	free := func(p unsafe.Pointer) { C.orrery_adapter_free((*C.orrery_adapter)(p)) }
	return &Adapter{newHandle(unsafe.Pointer(*out), free)}, nil
}

// Folder is a folder of saved sessions with a budget in bytes. Sessions with the option Folder find their prompts' beginnings there.
type Folder struct{ *handle }

// OpenFolder opens a folder, and makes it if it is not there. A maxBytes of 0 is no limit.
func OpenFolder(path string, maxBytes uint64) (*Folder, error) {
	k := newKeep()
	defer k.free()
	at, out := k.chars(path), new(*C.orrery_folder)
	if k.err != nil {
		return nil, k.err
	}
	err := call(func(e errorOut) status { return C.orrery_folder_open(at, C.uint64_t(maxBytes), out, e) })
	if err != nil {
		return nil, err
	}
	return &Folder{newHandle(unsafe.Pointer(*out), func(p unsafe.Pointer) { C.orrery_folder_free((*C.orrery_folder)(p)) })}, nil
}

// named calls f with the folder, a session or nil, and a name, or nil for "".
func (d *Folder) named(s *Session, name string, f func(p *C.orrery_folder, s *C.orrery_session, name *C.char, e errorOut) status) error {
	k := newKeep()
	defer k.free()
	var of *C.orrery_session
	var text *C.char
	if s != nil {
		of = (*C.orrery_session)(k.hold(s.handle))
	}
	if name != "" {
		text = k.chars(name)
	}
	if k.err != nil {
		return k.err
	}
	return d.call(func(p unsafe.Pointer, e errorOut) status { return f((*C.orrery_folder)(p), of, text, e) })
}

// Save saves a session. Without a name (""), the entry takes the place of shorter ones of the same prompt.
func (d *Folder) Save(s *Session, name string) error {
	return d.named(s, name, func(p *C.orrery_folder, s *C.orrery_session, name *C.char, e errorOut) status {
		return C.orrery_folder_save(p, s, name, e)
	})
}

func (d *Folder) Load(s *Session, name string) error {
	return d.named(s, name, func(p *C.orrery_folder, s *C.orrery_session, name *C.char, e errorOut) status {
		return C.orrery_folder_load(p, s, name, e)
	})
}

func (d *Folder) Remove(name string) error {
	return d.named(nil, name, func(p *C.orrery_folder, _ *C.orrery_session, name *C.char, e errorOut) status {
		return C.orrery_folder_remove(p, name, e)
	})
}

// List is the entries as JSON, the last used first.
func (d *Folder) List() (string, error) {
	return text(sizedOf(d.handle, func(p unsafe.Pointer, to *byte, capacity C.size_t, n *C.size_t, e errorOut) status {
		return C.orrery_folder_list((*C.orrery_folder)(p), (*C.char)(unsafe.Pointer(to)), capacity, n, e)
	}))
}

// AdapterUse is an adapter of a session, and the factor of what it adds.
type AdapterUse struct {
	Adapter *Adapter
	Scale   float32
}

// Embeddings are vectors in the order of the texts, one of each text or, without pooling, of each token.
type Embeddings struct {
	Vectors [][]float32
	NTokens []uint32 // of each text
}

// Embed computes vectors of texts. Options.Progress cancels by returning false.
func (m *Model) Embed(texts []string, options *EmbedOptions) (*Embeddings, error) {
	k := newKeep()
	defer k.free()
	defer k.callbacks.release()
	o, given := options.c(k), k.texts(texts)
	if k.err != nil {
		return nil, k.err
	}
	info, err := m.Info()
	if err != nil {
		return nil, err
	}
	size := int(info.NEmbd)
	if options != nil && options.NDimensions > 0 {
		size = int(options.NDimensions)
	}
	out := &Embeddings{NTokens: make([]uint32, len(texts))}
	var floats []float32
	var n C.size_t
	embed := func(p unsafe.Pointer, e errorOut) status {
		counts := (*C.uint32_t)(nil)
		if floats != nil {
			counts = (*C.uint32_t)(first(out.NTokens))
		}
		return C.orrery_embed((*C.orrery_model)(p), given, C.size_t(len(texts)), o, (*C.float)(first(floats)), C.size_t(len(floats)), &n, counts, e)
	}
	if err = m.call(embed); err != nil || n == 0 {
		return out, err
	}
	floats = make([]float32, n)
	err = m.use(func(p unsafe.Pointer) error {
		return k.callbacks.call(func(e errorOut) status { return embed(p, e) })
	})
	if err != nil {
		return nil, err
	}
	for ; len(floats) > 0; floats = floats[size:] {
		out.Vectors = append(out.Vectors, floats[:size:size])
	}
	return out, nil
}

// Rank says how well each text answers the query: more is better. The model must have a reranker's head (ModelInfo.Purpose).
func (m *Model) Rank(query string, texts []string, options *EmbedOptions) ([]float32, error) {
	k := newKeep()
	defer k.free()
	defer k.callbacks.release()
	o, given, asked := options.c(k), k.texts(texts), k.chars(query)
	if k.err != nil {
		return nil, k.err
	}
	scores := make([]float32, len(texts))
	err := m.use(func(p unsafe.Pointer) error {
		return k.callbacks.call(func(e errorOut) status {
			return C.orrery_rank((*C.orrery_model)(p), asked, given, C.size_t(len(texts)), o, (*C.float)(first(scores)), C.size_t(len(scores)), nil, e)
		})
	})
	if err != nil {
		return nil, err
	}
	return scores, nil
}

// Calibrate finds out which heads attend alike, from texts as tokens.
func (m *Model) Calibrate(texts [][]int32, options *CalibrateOptions) (*Calibration, error) {
	k := newKeep()
	defer k.free()
	defer k.callbacks.release()
	o, out := options.c(k), new(*C.orrery_calibration)
	if k.err != nil {
		return nil, k.err
	}
	var tokens []int32
	var lengths []C.size_t
	for _, t := range texts {
		tokens, lengths = append(tokens, t...), append(lengths, C.size_t(len(t)))
	}
	ids, sizes := (*C.int32_t)(first(tokens)), (*C.size_t)(first(lengths))
	err := m.use(func(p unsafe.Pointer) error {
		return k.callbacks.call(func(e errorOut) status {
			return C.orrery_calibrate((*C.orrery_model)(p), ids, sizes, C.size_t(len(lengths)), o, out, e)
		})
	})
	if err != nil {
		return nil, err
	}
	free := func(p unsafe.Pointer) { C.orrery_calibration_free((*C.orrery_calibration)(p)) }
	return &Calibration{newHandle(unsafe.Pointer(*out), free)}, nil
}

// Calibration is what Model.Calibrate found out.
type Calibration struct{ *handle }

// Profile is JSON for SessionOptions.HeadProfile.
func (c *Calibration) Profile() (string, error) {
	return text(sizedOf(c.handle, func(p unsafe.Pointer, to *byte, capacity C.size_t, n *C.size_t, e errorOut) status {
		return C.orrery_calibration_profile((*C.orrery_calibration)(p), (*C.char)(unsafe.Pointer(to)), capacity, n, e)
	}))
}

func (c *Calibration) Steps() (string, error) {
	return text(sizedOf(c.handle, func(p unsafe.Pointer, to *byte, capacity C.size_t, n *C.size_t, e errorOut) status {
		return C.orrery_calibration_steps((*C.orrery_calibration)(p), (*C.char)(unsafe.Pointer(to)), capacity, n, e)
	}))
}

// Matcher is a grammar and a place in it, for samplers of your own and for checks. One goroutine at a time.
type Matcher struct{ *handle }

// Matcher makes a grammar over these tokens, by the grammar options of Session.Generate.
func (v *Vocab) Matcher(options *GenerateOptions) (*Matcher, error) {
	k := newKeep()
	defer k.free()
	defer k.callbacks.release()
	o, out := options.c(k), new(*C.orrery_matcher)
	if k.err != nil {
		return nil, k.err
	}
	if err := v.call(func(p unsafe.Pointer, e errorOut) status {
		return C.orrery_matcher_create((*C.orrery_vocab)(p), o, out, e)
	}); err != nil {
		return nil, err
	}
	return &Matcher{newHandle(unsafe.Pointer(*out), func(p unsafe.Pointer) { C.orrery_matcher_free((*C.orrery_matcher)(p)) })}, nil
}

// Mask has the tokens that may come next: bit i of word w is token 32 w + i.
func (m *Matcher) Mask() ([]uint32, error) {
	return sizedOf(m.handle, func(p unsafe.Pointer, to *uint32, capacity C.size_t, n *C.size_t, e errorOut) status {
		return C.orrery_matcher_mask((*C.orrery_matcher)(p), (*C.uint32_t)(to), capacity, n, e)
	})
}

// Accept goes on with the first tokens that are allowed, and returns how many.
func (m *Matcher) Accept(tokens []int32) (int, error) {
	ids, n := (*C.int32_t)(first(tokens)), new(C.size_t)
	err := m.call(func(p unsafe.Pointer, e errorOut) status {
		return C.orrery_matcher_accept((*C.orrery_matcher)(p), ids, C.size_t(len(tokens)), n, e)
	})
	return int(*n), err
}

// Rewind goes back to the first n accepted tokens.
func (m *Matcher) Rewind(n int) error {
	return m.call(func(p unsafe.Pointer, e errorOut) status {
		return C.orrery_matcher_rewind((*C.orrery_matcher)(p), C.size_t(n), e)
	})
}

// Forced has tokens of the text that follows in any case.
func (m *Matcher) Forced() ([]int32, error) {
	return sizedOf(m.handle, func(p unsafe.Pointer, to *int32, capacity C.size_t, n *C.size_t, e errorOut) status {
		return C.orrery_matcher_forced((*C.orrery_matcher)(p), (*C.int32_t)(to), capacity, n, e)
	})
}

// Match says how many bytes of a text can begin an answer, and whether the whole text is one.
func (m *Matcher) Match(text string) (matched int, complete bool, err error) {
	k := newKeep()
	defer k.free()
	data, n, whole := k.chars(text), new(C.size_t), new(C.uint32_t)
	err = m.call(func(p unsafe.Pointer, e errorOut) status {
		return C.orrery_matcher_match((*C.orrery_matcher)(p), data, C.size_t(len(text)), n, whole, e)
	})
	return int(*n), *whole != 0, err
}

// Describe is JSON: rules, states, bytes, and notices of what does not constrain.
func (m *Matcher) Describe() (string, error) {
	return text(sizedOf(m.handle, func(p unsafe.Pointer, to *byte, capacity C.size_t, n *C.size_t, e errorOut) status {
		return C.orrery_matcher_describe((*C.orrery_matcher)(p), (*C.char)(unsafe.Pointer(to)), capacity, n, e)
	}))
}
