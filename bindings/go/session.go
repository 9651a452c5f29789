// Sessions and generations: a conversation, and one answer of it under way.

package orrery

/*
#include <stdlib.h>
#include <orrery_lab.h>
extern int32_t goOrreryEvent(void *, orrery_event *);
static orrery_status run_with_go(orrery_generation *g, void *user, orrery_error *e) {
	return orrery_run(g, (orrery_event_fn)goOrreryEvent, user, e);
}
*/
import "C"

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync"
	"unsafe"
)

// Session is one sequence of tokens, its KV cache and the conversation. While a generation of it is open and unfinished, calls
// that change it fail with StatusBusy.
type Session struct {
	*handle
	nVocab, nEmbd int
	log           *callbacks
}

func newSession(p *C.orrery_session, nVocab, nEmbd int, log *callbacks) *Session {
	free := func(p unsafe.Pointer) { C.orrery_session_free((*C.orrery_session)(p)) }
	return &Session{newHandle(unsafe.Pointer(p), free), nVocab, nEmbd, log}
}

// callText calls a method of the session with up to two strings.
func (s *Session) callText(a, b string, f func(p *C.orrery_session, a, b *C.char, e errorOut) status) error {
	k := newKeep()
	defer k.free()
	x, y := k.chars(a), k.chars(b)
	if k.err != nil {
		return k.err
	}
	return s.call(func(p unsafe.Pointer, e errorOut) status { return f((*C.orrery_session)(p), x, y, e) })
}

func (s *Session) AddMessage(role, content string) error {
	return s.callText(role, content, func(p *C.orrery_session, a, b *C.char, e errorOut) status {
		return C.orrery_session_add_message(p, a, b, e)
	})
}

func (s *Session) AddMessageJSON(message string) error {
	return s.callText(message, "", func(p *C.orrery_session, a, _ *C.char, e errorOut) status {
		return C.orrery_session_add_message_json(p, a, e)
	})
}

func (s *Session) NMessages() (n int) {
	s.use(func(p unsafe.Pointer) error { n = int(C.orrery_session_n_messages((*C.orrery_session)(p))); return nil })
	return n
}

// Message returns message i as JSON.
func (s *Session) Message(i int) (string, error) {
	return text(sizedOf(s.handle, func(p unsafe.Pointer, to *byte, capacity C.size_t, n *C.size_t, e errorOut) status {
		return C.orrery_session_message((*C.orrery_session)(p), C.size_t(i), (*C.char)(unsafe.Pointer(to)), capacity, n, e)
	}))
}

func (s *Session) SetTemplate(options *TemplateOptions) error {
	k := newKeep()
	defer k.free()
	o := options.c(k)
	if k.err != nil {
		return k.err
	}
	return s.call(func(p unsafe.Pointer, e errorOut) status {
		return C.orrery_session_set_template((*C.orrery_session)(p), o, e)
	})
}

func (s *Session) RewindMessages(n int) error {
	return s.call(func(p unsafe.Pointer, e errorOut) status {
		return C.orrery_session_rewind_messages((*C.orrery_session)(p), C.size_t(n), e)
	})
}

func (s *Session) NTokens() (n int) {
	s.use(func(p unsafe.Pointer) error { n = int(C.orrery_session_n_tokens((*C.orrery_session)(p))); return nil })
	return n
}

func (s *Session) Tokens() ([]int32, error) {
	return sizedOf(s.handle, func(p unsafe.Pointer, to *int32, capacity C.size_t, n *C.size_t, e errorOut) status {
		return C.orrery_session_tokens((*C.orrery_session)(p), (*C.int32_t)(to), capacity, n, e)
	})
}

func (s *Session) Rewind(nTokens int) error {
	return s.call(func(p unsafe.Pointer, e errorOut) status {
		return C.orrery_session_rewind((*C.orrery_session)(p), C.size_t(nTokens), e)
	})
}

// SetAdapters replaces the session's adapters. Where the list changes, the session drops its tokens.
func (s *Session) SetAdapters(adapters ...AdapterUse) error {
	k := newKeep()
	defer k.free()
	uses := k.uses(adapters)
	if k.err != nil {
		return k.err
	}
	return s.call(func(p unsafe.Pointer, e errorOut) status {
		return C.orrery_session_set_adapters((*C.orrery_session)(p), uses, C.size_t(len(adapters)), e)
	})
}

func (s *Session) Fork() (*Session, error) {
	out := new(*C.orrery_session)
	err := s.call(func(p unsafe.Pointer, e errorOut) status {
		return C.orrery_session_fork((*C.orrery_session)(p), out, e)
	})
	if err != nil {
		return nil, err
	}
	return newSession(*out, s.nVocab, s.nEmbd, s.log), nil
}

func (s *Session) Save(path string) error {
	return s.callText(path, "", func(p *C.orrery_session, a, _ *C.char, e errorOut) status { return C.orrery_session_save(p, a, e) })
}

func (s *Session) Load(path string) error {
	return s.callText(path, "", func(p *C.orrery_session, a, _ *C.char, e errorOut) status { return C.orrery_session_load(p, a, e) })
}

func (s *Session) SaveBuffer() ([]byte, error) {
	return sizedOf(s.handle, func(p unsafe.Pointer, to *byte, capacity C.size_t, n *C.size_t, e errorOut) status {
		return C.orrery_session_save_buffer((*C.orrery_session)(p), unsafe.Pointer(to), capacity, n, e)
	})
}

func (s *Session) LoadBuffer(bytes []byte) error {
	data := first(bytes)
	return s.call(func(p unsafe.Pointer, e errorOut) status {
		return C.orrery_session_load_buffer((*C.orrery_session)(p), data, C.size_t(len(bytes)), e)
	})
}

func (s *Session) evaluate(tokens []int32, logits []float32) error {
	ids, out := (*C.int32_t)(first(tokens)), (*C.float)(first(logits))
	return s.call(func(p unsafe.Pointer, e errorOut) status {
		return C.orrery_session_evaluate((*C.orrery_session)(p), ids, C.size_t(len(tokens)), out, e)
	})
}

// Evaluate appends tokens without generating.
func (s *Session) Evaluate(tokens []int32) error { return s.evaluate(tokens, nil) }

// EvaluateLogits appends tokens, and returns (tokens, vocabulary) logits.
func (s *Session) EvaluateLogits(tokens []int32) ([]float32, error) {
	logits := make([]float32, len(tokens)*s.nVocab)
	return logits, s.evaluate(tokens, logits)
}

// Logits are those of the last computed token.
func (s *Session) Logits() ([]float32, error) {
	out := make([]float32, s.nVocab)
	return out, s.call(func(p unsafe.Pointer, e errorOut) status {
		return C.orrery_session_logits((*C.orrery_session)(p), (*C.float)(first(out)), C.size_t(len(out)), e)
	})
}

// Embedding is the final hidden state of the last computed token.
func (s *Session) Embedding() ([]float32, error) {
	out := make([]float32, s.nEmbd)
	return out, s.call(func(p unsafe.Pointer, e errorOut) status {
		return C.orrery_session_embedding((*C.orrery_session)(p), (*C.float)(first(out)), C.size_t(len(out)), e)
	})
}

func (s *Session) Stats() (Stats, error) {
	return fillStats(func(out *C.orrery_stats) error {
		return s.call(func(p unsafe.Pointer, e errorOut) status {
			return C.orrery_session_stats((*C.orrery_session)(p), out, e)
		})
	})
}

// HeadRoles is the number of KV heads in each of HeteroCache's roles.
func (s *Session) HeadRoles() (HeadRoles, error) {
	return fillHeadRoles(func(out *C.orrery_head_roles) error {
		return s.call(func(p unsafe.Pointer, e errorOut) status {
			return C.orrery_session_head_roles((*C.orrery_session)(p), out, e)
		})
	})
}

// Residency is (n_layers, n_kv_heads), flat: the tokens that each KV head holds on the device.
func (s *Session) Residency() ([]uint32, error) {
	return sizedOf(s.handle, func(p unsafe.Pointer, to *uint32, capacity C.size_t, n *C.size_t, e errorOut) status {
		return C.orrery_session_residency((*C.orrery_session)(p), (*C.uint32_t)(to), capacity, n, e)
	})
}

// Ask adds a user's message and returns the whole answer's text. An answer that fails, or that the context cancels, leaves the message in
// the conversation.
func (s *Session) Ask(ctx context.Context, question string, options *GenerateOptions) (string, error) {
	if err := s.AddMessage("user", question); err != nil {
		return "", err
	}
	answer, err := s.Generate(ctx, options)
	if err != nil {
		return "", err
	}
	var text strings.Builder
	err = answer.Each(func(e Event) bool { text.WriteString(e.Text); return true })
	return text.String(), err
}

// Generate begins the answer to the conversation; the context cancels it, also during the prompt.
func (s *Session) Generate(ctx context.Context, options *GenerateOptions) (*Generation, error) {
	return s.begin(ctx, options, func(p *C.orrery_session, o *C.orrery_generate_options, g **C.orrery_generation, e errorOut) status {
		return C.orrery_generate(p, o, g, e)
	})
}

// GenerateTokens begins a continuation of exactly these tokens.
func (s *Session) GenerateTokens(ctx context.Context, tokens []int32, options *GenerateOptions) (*Generation, error) {
	ids := (*C.int32_t)(first(tokens))
	return s.begin(ctx, options, func(p *C.orrery_session, o *C.orrery_generate_options, g **C.orrery_generation, e errorOut) status {
		return C.orrery_generate_tokens(p, ids, C.size_t(len(tokens)), o, g, e)
	})
}

func (s *Session) begin(ctx context.Context, options *GenerateOptions,
	f func(*C.orrery_session, *C.orrery_generate_options, **C.orrery_generation, errorOut) status) (*Generation, error) {
	k := newKeep()
	defer k.free()
	o, out := options.c(k), new(*C.orrery_generation)
	err := k.err
	if err == nil {
		err = s.call(func(p unsafe.Pointer, e errorOut) status { return f((*C.orrery_session)(p), o, out, e) })
	}
	if err != nil {
		k.callbacks.release()
		return nil, err
	}
	g := &Generation{ctx: ctx, callbacks: k.callbacks, log: s.log, closed: make(chan struct{})}
	hooks := k.callbacks
	g.handle = newHandle(unsafe.Pointer(*out), func(p unsafe.Pointer) {
		C.orrery_generation_free((*C.orrery_generation)(p))
		hooks.release()
	})
	if ctx.Done() != nil {
		go func(h *handle, closed chan struct{}) {
			select {
			case <-ctx.Done():
				cancel(h)
			case <-closed:
			}
		}(g.handle, g.closed)
	}
	return g, nil
}

// Cancel cancels what the session does now, a generation or a long call. Any goroutine may call it; what begins later is not
// cancelled.
func (s *Session) Cancel() {
	s.use(func(p unsafe.Pointer) error { C.orrery_session_cancel((*C.orrery_session)(p)); return nil })
}

// Generation is one answer under way.
type Generation struct {
	*handle
	ctx       context.Context
	callbacks *callbacks
	log       *callbacks
	closed    chan struct{}
	once      sync.Once
}

func cancel(h *handle) {
	h.use(func(p unsafe.Pointer) error { C.orrery_cancel((*C.orrery_generation)(p)); return nil })
}

// Cancel may be called by any goroutine, also when the answer has ended or is closed: the next event is then EventTypeDone.
func (g *Generation) Cancel() { cancel(g.handle) }

// Close frees the session for other calls; a Next under way ends first.
func (g *Generation) Close() error {
	g.once.Do(func() { close(g.closed) })
	g.Cancel()
	return g.handle.Close()
}

// Next works until there is something to tell; behind the end it repeats EventTypeDone. Where the context ended the answer, the
// error is the context's.
func (g *Generation) Next() (event Event, err error) {
	err = g.use(func(p unsafe.Pointer) error {
		raw := new(C.orrery_event)
		C.orrery_event_init(raw, C.sizeof_orrery_event)
		checkSize(uint32(raw.struct_size), C.sizeof_orrery_event)
		err := g.callbacks.call(func(e errorOut) status { return C.orrery_next((*C.orrery_generation)(p), raw, e) })
		if err == nil {
			event = toEvent(raw)
		}
		return err
	})
	if err == nil && event.Type == EventTypeDone && event.FinishReason == FinishReasonCancelled {
		err = g.ctx.Err()
	}
	return event, err
}

// Run hands every event to on, which cancels by returning false.
func (g *Generation) Run(on func(Event) bool) error {
	return g.use(func(p unsafe.Pointer) error {
		one := callbacks{}
		user := one.add(on)
		defer one.release()
		return g.callbacks.call(func(e errorOut) (result status) {
			if err := one.call(func(*C.orrery_error) C.orrery_status {
				result = C.run_with_go((*C.orrery_generation)(p), user, e)
				return C.ORRERY_OK
			}); err != nil {
				panic(err) // it is never one
			}
			return result
		})
	})
}

// All is for `for event, err := range generation.All()` (Go 1.23). Leaving the loop, however, closes the generation.
func (g *Generation) All() func(yield func(Event, error) bool) {
	return func(yield func(Event, error) bool) {
		defer g.Close()
		for {
			event, err := g.Next()
			if !yield(event, err) || err != nil || event.Type == EventTypeDone {
				return
			}
		}
	}
}

// Each hands every event to on until the answer ends or on returns false, and closes the generation.
func (g *Generation) Each(on func(Event) bool) (err error) {
	g.All()(func(event Event, failed error) bool {
		err = failed
		return failed == nil && on(event)
	})
	return err
}

// ErrCut says that an answer was cut before it was whole by its grammar.
var ErrCut = errors.New("orrery: the answer was cut before it was whole")

// JSON runs to the end of an answer under a JSON schema and stores the value in v, as json.Unmarshal does. The schema is
// GenerateOptions.Grammar, with GrammarKind: GrammarJsonSchema.
func (g *Generation) JSON(v any) error {
	text, complete := "", false
	err := g.Each(func(event Event) bool {
		text += event.Text
		complete = complete || event.Complete
		return true
	})
	if err == nil && !complete {
		err = ErrCut
	}
	if err != nil {
		return err
	}
	return json.Unmarshal([]byte(text), v)
}

// TokenLogprob is one of Event.Top.
type TokenLogprob struct {
	Token   int32
	Logprob float32
}

// Event is one thing that a generation tells; Type says which fields it has.
type Event struct {
	Type                                        EventType
	Done, Total                                 uint64         // Progress: prompt tokens
	Text                                        string         // Text, Reasoning: whole characters; Arguments, CallEnd: JSON
	Call                                        uint32         // Call, Arguments, CallEnd: the call's number
	Name, CallID                                string         // the same: the tool's name; CallEnd: the call's id
	Bytes                                       []byte         // Token: its bytes
	Token                                       int32          // Token
	Logprob                                     float32        // Token
	Top                                         []TokenLogprob // Token: the likeliest
	FinishReason                                FinishReason   // Done
	StopIndex                                   uint32         // Done, by a stop string
	PromptTokens, ReusedTokens, GeneratedTokens uint64         // Done
	FirstTokenUs, PrefillUs, DecodeUs           uint64         // Done
	Complete                                    bool           // Done: the text is whole by the grammar
}

// toEvent copies what the event points to: it lives until the next call.
func toEvent(e *C.orrery_event) Event {
	event := Event{Type: EventType(e._type), Done: uint64(e.done), Total: uint64(e.total), Token: int32(e.token), Logprob: float32(e.logprob),
		FinishReason: FinishReason(e.finish_reason), StopIndex: uint32(e.stop_index), PromptTokens: uint64(e.prompt_tokens),
		ReusedTokens: uint64(e.reused_tokens), GeneratedTokens: uint64(e.generated_tokens), FirstTokenUs: uint64(e.first_token_us),
		PrefillUs: uint64(e.prefill_us), DecodeUs: uint64(e.decode_us), Complete: e.complete != 0}
	switch event.Type {
	case EventTypeText, EventTypeReasoning:
		event.Text = C.GoStringN(e.text, C.int(e.text_bytes))
	case EventTypeCall, EventTypeArguments, EventTypeCallEnd:
		event.Text = C.GoStringN(e.text, C.int(e.text_bytes))
		event.Call, event.Name, event.CallID = uint32(e.call), C.GoString(e.name), C.GoString(e.call_id)
	case EventTypeToken:
		event.Bytes = C.GoBytes(unsafe.Pointer(e.text), C.int(e.text_bytes))
		for _, t := range unsafe.Slice(e.top, e.n_top) {
			event.Top = append(event.Top, TokenLogprob{int32(t.token), float32(t.logprob)})
		}
	}
	return event
}
