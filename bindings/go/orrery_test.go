// What Go's users expect beyond the conformance script. $ORRERY_MODEL names the demo model.

package orrery

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

const story = "Nobody in the mill noticed the orange owl. Bruno lives in Salem. Orla is a printer from Tunis. "

func open(t *testing.T) *Session {
	t.Helper()
	options := DefaultRuntimeOptions()
	options.NThreads, options.Backend = 1, "cpu"
	options.DeviceBudgetBytes, options.ReservoirBytes = 256<<20, 1<<20
	r, err := NewRuntime(&options)
	fatal(t, err)
	m, err := r.Open(os.Getenv("ORRERY_MODEL"), nil)
	fatal(t, err)
	o := DefaultSessionOptions()
	o.NContext = 8192
	s, err := m.NewSession(&o)
	fatal(t, err)
	return s
}

func fatal(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func ask(t *testing.T, s *Session, ctx context.Context, repeat int, options *GenerateOptions) *Generation {
	t.Helper()
	fatal(t, s.RewindMessages(0))
	fatal(t, s.AddMessage("user", strings.Repeat(story, repeat)+"\n\nWhere does Bruno live?"))
	g, err := s.Generate(ctx, options)
	fatal(t, err)
	return g
}

func TestAnswersHaveTheirForm(t *testing.T) {
	s := open(t)
	options := DefaultGenerateOptions()
	options.Grammar = `{"type": "object", "properties": {"town": {"enum": ["Salem"]}, "n": {"const": 7}}, "required": ["town", "n"], "additionalProperties": false}`
	options.GrammarKind = GrammarJsonSchema
	var home struct {
		Town string
		N    int
	}
	fatal(t, ask(t, s, context.Background(), 1, &options).JSON(&home))
	if home.Town != "Salem" || home.N != 7 {
		t.Fatal(home)
	}
	options.MaxTokens = 2
	if err := ask(t, s, context.Background(), 1, &options).JSON(&home); !errors.Is(err, ErrCut) {
		t.Fatal(err)
	}
}

const calling = "{%- for m in messages -%}{{- '<' + m.role + '>' + m.content -}}{%- for c in m.tool_calls or [] -%}" +
	"{{- '<call>{\"name\": \"' + c.function.name + '\", \"arguments\": ' + (c.function.arguments | tojson) + '}</call>' -}}{%- endfor -%}" +
	"{{- '</>' -}}{%- endfor -%}{%- if add_generation_prompt -%}{{- '<assistant>' -}}{%- endif -%}"

func TestFunctionsAreTools(t *testing.T) {
	s, given := open(t), []string{}
	generate, template := DefaultGenerateOptions(), DefaultTemplateOptions()
	generate.Tools, generate.OneCall, generate.MaxTokens, template.TemplateSource = ToolsRequired, 1, 80, calling
	options := RunToolsOptions{Generate: &generate, Template: &template, MostTurns: 2}
	ctx, cancel := context.WithCancel(context.Background())
	content := func(i int) string {
		var message struct{ Role, Content string }
		fatal(t, json.Unmarshal([]byte(must(t)(s.Message(i))), &message))
		if message.Role != "tool" {
			t.Fatal(message)
		}
		return message.Content
	}
	run := func(f Function) (string, error) {
		fatal(t, s.RewindMessages(0))
		fatal(t, s.AddMessage("user", "hello"))
		return s.RunTools(ctx, []Function{f}, &options)
	}
	look := Function{Name: "look", Description: "Looks.", Run: func(_ context.Context, arguments json.RawMessage) (any, error) {
		given = append(given, string(arguments))
		return map[string]string{"sees": "an \"owl\""}, nil
	}, Parameters: json.RawMessage(`{"type": "object", "properties": {"at": {"enum": ["here"]}}, "required": ["at"]}`)}
	must(t)(run(look))
	if s.NMessages() != 4 || content(2) != `{"sees":"an \"owl\""}` || given[0] != `{"at": "here"}` {
		t.Fatal(given, content(2))
	}
	// An error of a function is told to the model; without parameters it gets none.
	fails := Function{Name: "fails", Run: func(_ context.Context, arguments json.RawMessage) (any, error) {
		given = append(given, string(arguments))
		return nil, errors.New("too far")
	}}
	must(t)(run(fails))
	if content(2) != "too far" || given[1] != "{}" {
		t.Fatal(given, content(2))
	}
	// One turn calls nothing, and a context that is over ends the loop.
	options.MostTurns = 1
	must(t)(run(look))
	options.MostTurns = -1
	if _, err := run(look); !errors.Is(err, StatusInvalidArgument) || len(given) != 2 {
		t.Fatal(err, given)
	}
	options.MostTurns = 2
	fails.Run = func(context.Context, json.RawMessage) (any, error) { cancel(); return "late", nil }
	if _, err := run(fails); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	fails.Parameters = json.RawMessage("{")
	if _, err := run(fails); err == nil {
		t.Fatal("parameters that are not JSON")
	}
}

func must(t *testing.T) func(string, error) string {
	return func(text string, err error) string { t.Helper(); fatal(t, err); return text }
}

func TestAskReturnsTheWholeAnswer(t *testing.T) {
	s := open(t)
	answer, err := s.Ask(context.Background(), story+"\n\nWhere does Bruno live?", nil)
	fatal(t, err)
	if strings.TrimSpace(answer) != "Bruno lives in Salem." {
		t.Fatal(answer)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := s.Ask(ctx, story, nil); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
}

func TestAdaptersAndADraftAreOptionsOfASession(t *testing.T) {
	options := DefaultRuntimeOptions()
	options.NThreads, options.Backend = 1, "cpu"
	r, err := NewRuntime(&options)
	fatal(t, err)
	m, err := r.Open(os.Getenv("ORRERY_MODEL"), nil)
	fatal(t, err)
	adapter, err := m.OpenAdapter(filepath.Join(filepath.Dir(os.Getenv("ORRERY_MODEL")), "adapter.gguf"))
	fatal(t, err)
	logits := func(s *Session) []float32 {
		fatal(t, s.Evaluate([]int32{70, 71, 72}))
		found, err := s.Logits()
		fatal(t, err)
		return found
	}
	o := DefaultSessionOptions()
	o.NContext = 512
	later, err := m.NewSession(&o)
	fatal(t, err)
	o.Adapters = []AdapterUse{{adapter, 0.5}}
	given, err := m.NewSession(&o)
	fatal(t, err)
	if reflect.DeepEqual(logits(given), logits(later)) {
		t.Fatal("the adapter changes nothing")
	}
	fatal(t, given.Rewind(0))
	fatal(t, later.SetAdapters(o.Adapters...))
	fatal(t, adapter.Close())
	if !reflect.DeepEqual(logits(given), logits(later)) {
		t.Fatal("the option and the call differ")
	}
	if _, err := m.NewSession(&o); !errors.Is(err, ErrClosed) {
		t.Fatal(err)
	}
	o.Adapters, o.Speculate = nil, SpeculateDraft
	o.DraftModel, err = r.Open(os.Getenv("ORRERY_MODEL"), nil)
	fatal(t, err)
	drafting, err := m.NewSession(&o)
	fatal(t, err)
	fatal(t, o.DraftModel.Close())
	if _, err := drafting.Ask(context.Background(), story, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := m.NewSession(&o); !errors.Is(err, ErrClosed) {
		t.Fatal(err)
	}
}

func TestLeavingEarlyFreesTheSession(t *testing.T) {
	s := open(t)
	fatal(t, ask(t, s, context.Background(), 1, nil).Each(func(Event) bool { return false }))
	fatal(t, s.AddMessage("user", "not busy"))
	g := ask(t, s, context.Background(), 1, nil)
	if err := s.AddMessage("user", "busy"); !errors.Is(err, StatusBusy) || errors.Is(err, StatusIo) {
		t.Fatal(err)
	}
	fatal(t, g.Close())
	fatal(t, s.AddMessage("user", "not busy"))
}

func TestAContextStopsAPrompt(t *testing.T) {
	s := open(t)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
	defer cancel()
	err := ask(t, s, ctx, 150, nil).Each(func(Event) bool { return true })
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	fatal(t, s.AddMessage("user", "not busy"))
}

func TestClosersAndCancellersAtOnce(t *testing.T) {
	s := open(t)
	for i := 0; i < 20; i++ {
		g := ask(t, s, context.Background(), 5, nil)
		var all sync.WaitGroup
		for _, f := range []func(){g.Cancel, func() { g.Close() }, func() { g.Next() }, g.Cancel} {
			all.Add(1)
			go func(f func()) { defer all.Done(); f() }(f)
		}
		all.Wait()
		g.Cancel()
		if _, err := g.Next(); !errors.Is(err, ErrClosed) {
			t.Fatal(err)
		}
	}
}

func TestAPanicInAHookGoesOn(t *testing.T) {
	s := open(t)
	options := DefaultGenerateOptions()
	options.LogitsHook = func([]float32, []int32) bool { panic("mine") }
	g := ask(t, s, context.Background(), 1, &options)
	func() {
		defer func() {
			if r := recover(); r != "mine" {
				t.Fatal(r)
			}
		}()
		g.Each(func(Event) bool { return true })
	}()
	fatal(t, s.AddMessage("user", "not busy"))
}

func TestErrorsHaveEveryField(t *testing.T) {
	s := open(t)
	options := DefaultTemplateOptions()
	options.TemplateSource = "\n {% endfor %}"
	var e *Error
	if err := s.SetTemplate(&options); !errors.As(err, &e) || e.Status != StatusUnsupportedTemplate || e.Line != 2 {
		t.Fatal(err)
	}
	if _, err := OpenVocab("/nowhere"); !errors.As(err, &e) || e.NativeCode != 2 || !errors.Is(err, StatusIo) || !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	fatal(t, s.AddMessage("user", "hi"))
	sizes := DefaultGenerateOptions()
	sizes.TopP = 9
	if _, err := s.Generate(context.Background(), &sizes); !errors.As(err, &e) || e.Option != "top_p" {
		t.Fatal(err)
	}
	if err := s.AddMessage("user", "a\x00b"); !errors.Is(err, StatusInvalidArgument) {
		t.Fatal(err)
	}
}

func TestHandlesAreCollected(t *testing.T) {
	heard := 0
	for i := 0; i < 3; i++ {
		options := DefaultRuntimeOptions()
		options.Backend, options.LogLevel = "cpu", LogLevelDebug
		options.Log = func(LogLevel, string) { heard++ }
		r, err := NewRuntime(&options)
		fatal(t, err)
		m, err := r.Open(os.Getenv("ORRERY_MODEL"), nil)
		fatal(t, err)
		r.Close()
		_, err = m.NewSession(nil)
		fatal(t, err)
		runtime.GC()
		runtime.GC()
	}
	if heard == 0 {
		t.Fatal("no log")
	}
}

func TestConstantsHaveTypesAndNames(t *testing.T) {
	options := DefaultSessionOptions()
	options.KvType = KvTypeQ80
	for _, c := range []struct{ value, typed, name any }{
		{options.KvType, KvType(2), "ORRERY_KV_Q8_0"},
		{DefaultModelOptions().Load, LoadModeMap, "ORRERY_LOAD_MAP"},
		{Event{}.Type, EventType(0), EventType(0).String()},
		{FinishReasonStop, FinishReason(2), ConstantName("finish_reason", 2)},
	} {
		if c.value != c.typed || fmt.Sprint(c.value) != c.name {
			t.Errorf("%T %v, expected %T %v", c.value, c.value, c.typed, c.name)
		}
	}
	if _, plain := any(options.DeviceKvType).(uint32); !plain {
		t.Error("DeviceKvType counts from one, so it is a number")
	}
}
