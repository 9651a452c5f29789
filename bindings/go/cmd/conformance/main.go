// Conformance, Go: carries out the steps of a script, prints what they give. ../../../conformance/README.md has the verbs.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/bits"
	"os"
	"reflect"
	"sort"
	"strconv"
	"strings"

	"orrery.invalid/orrery"
)

var ( // verbs that are one method; its arguments are the step's
	made    = map[string]any{"runtime": orrery.NewRuntime, "vocab": orrery.OpenVocab, "plan": orrery.Plan}
	methods = map[string]string{"model": "Open", "vocab_of": "Vocab", "session": "NewSession", "fork": "Fork", "generate": "Generate", "matcher": "Matcher",
		"continue": "GenerateTokens", "save_buffer": "SaveBuffer"} // of argument 2; argument 1 names what they make
	verbs = map[string]string{"free": "Close", "flags": "TokenFlags", "render": "RenderChat", "template": "SetTemplate", "say": "AddMessage",
		"say_json": "AddMessageJSON", "message": "Message", "rewind_messages": "RewindMessages", "rewind": "Rewind", "save": "Save",
		"load": "Load", "load_buffer": "LoadBuffer", "rewind_matcher": "Rewind"} // of argument 1
)

func show(e orrery.Event) bool {
	switch e.Type {
	case orrery.EventTypeProgress:
		fmt.Println("progress", e.Done, e.Total)
	case orrery.EventTypeText:
		fmt.Println("text", quote(e.Text))
	case orrery.EventTypeToken:
		line := fmt.Sprint("token ", e.Token, " ", quote(e.Bytes))
		if len(e.Top) > 0 {
			line += fmt.Sprint(" near ", int(math.Floor(0.5-float64(e.Logprob))))
		}
		for _, t := range e.Top {
			line += fmt.Sprint(" ", t.Token)
		}
		fmt.Println(line)
	case orrery.EventTypeReasoning:
		fmt.Println("reasoning", quote(e.Text))
	case orrery.EventTypeCall:
		fmt.Println("call", e.Call, e.Name)
	case orrery.EventTypeArguments:
		fmt.Println("arguments", e.Call, e.Name, quote(e.Text))
	case orrery.EventTypeCallEnd:
		fmt.Println("call_end", e.Call, e.Name, e.CallID)
	case orrery.EventTypeDone:
		words := []any{"done", uint32(e.FinishReason), e.StopIndex, e.PromptTokens, e.ReusedTokens, e.GeneratedTokens}
		if e.Complete {
			words = append(words, "complete")
		}
		fmt.Println(words...)
	}
	return e.Type != orrery.EventTypeDone
}

func drain(g *orrery.Generation, limit int) {
	for ; limit != 0 && show(must(g.Next())); limit-- {
	}
}

func counted(limit int) func(orrery.Event) bool {
	return func(e orrery.Event) bool { show(e); limit--; return limit != 0 }
}

func answer(g *orrery.Generation) {
	said, last := "", orrery.Event{}
	check(g.Each(func(e orrery.Event) bool { said += e.Text; last = e; return true }))
	fmt.Println(quote(said), uint32(last.FinishReason))
}

func functions(s *orrery.Session, mostTurns int, name, schema string) {
	f := func(g *orrery.GenerateOptions, t *orrery.TemplateOptions) (string, error) {
		run := func(context.Context, json.RawMessage) (any, error) {
			fmt.Println("function", name)
			return "seen by " + name, nil
		}
		one := []orrery.Function{{Name: name, Parameters: json.RawMessage(schema), Run: run}}
		return s.RunTools(context.Background(), one, &orrery.RunToolsOptions{Generate: g, Template: t, MostTurns: mostTurns})
	}
	fmt.Println(quote(invoke(reflect.ValueOf(f), nil)))
}

func evaluate(s *orrery.Session, rows bool, ids []int32) {
	if !rows {
		check(s.Evaluate(ids))
		return
	}
	logits, line := must(s.EvaluateLogits(ids)), "largest"
	for size := len(logits) / len(ids); len(logits) > 0; logits = logits[size:] {
		line += fmt.Sprint(" ", largest(logits[:size]))
	}
	fmt.Println(line)
}

func step(verb string, w []string) {
	session := func() *orrery.Session { return at[*orrery.Session](w[0]) }
	generation := func() *orrery.Generation { return at[*orrery.Generation](w[0]) }
	generate := func() *orrery.Generation {
		return invoke(reflect.ValueOf(session().Generate), nil).(*orrery.Generation)
	}
	number := func(i int) int { return int(numbers(w[i : i+1])[0]) }
	open := func(source orrery.Source) {
		f := func(o *orrery.ModelOptions) (*orrery.Model, error) {
			return at[*orrery.Runtime](w[1]).OpenFrom(source, o)
		}
		things[w[0]] = invoke(reflect.ValueOf(f), nil)
	}
	plan := func(source orrery.Source) {
		f := func(r *orrery.RuntimeOptions, m *orrery.ModelOptions, s *orrery.SessionOptions) (orrery.PlanResult, error) {
			return orrery.PlanFrom(source, r, m, s)
		}
		things[w[0]] = invoke(reflect.ValueOf(f), nil)
	}
	other := map[string]func(){
		"abi":     func() { fmt.Println(orrery.AbiVersion(), orrery.Version(), yes(orrery.BuildInfo() != "")) },
		"status":  func() { fmt.Println(orrery.Status(number(0)).Error()) },
		"name":    func() { fmt.Println(orrery.ConstantName(w[0], int64(number(1)))) },
		"threads": func() { check(at[*orrery.Runtime](w[0]).SetThreads(int32(number(1)), orrery.Priority(number(2)))) },
		"devices": func() {
			good := true
			for _, d := range must(orrery.Devices()) {
				good = good && (d.Name != "" || d.Refused != "")
			}
			fmt.Println(yes(good))
		},
		"regions": func() {
			all := invoke(reflect.ValueOf(orrery.PlanRegions), w[1:]).([]orrery.PlanRegion)
			bytes := at[orrery.PlanResult](w[0]).DeviceBytes
			for _, r := range all {
				fmt.Print(quote(r.Name), " ")
				bytes -= r.DeviceBytes
			}
			fmt.Println(yes(bytes == 0))
		},
		"embed": func() { embed(at[*orrery.Model](w[0]), strings.Split(text(w[1:]), "|")) },
		"rank":  func() { rank(at[*orrery.Model](w[0]), strings.Split(text(w[1:]), "|")) },
		"cancel_session": func() { done := make(chan bool); go func() { session().Cancel(); done <- true }(); <-done },
		"model_fd": func() {
			file := must(os.Open(text(w[2:])))
			defer file.Close()
			open(orrery.Descriptor{Fd: file.Fd()})
		},
		"model_part": func() {
			file := must(os.Open(text(w[4:])))
			defer file.Close()
			open(orrery.Descriptor{Fd: file.Fd(), Offset: uint64(number(2)), Bytes: uint64(number(3))})
		},
		"model_memory": func() { open(orrery.Memory(must(os.ReadFile(text(w[2:]))))) },
		"vocab_fd": func() {
			file := must(os.Open(text(w[1:])))
			defer file.Close()
			things[w[0]] = must(orrery.OpenVocabFrom(orrery.Descriptor{Fd: file.Fd()}))
		},
		"vocab_memory": func() { things[w[0]] = must(orrery.OpenVocabFrom(orrery.Memory(must(os.ReadFile(text(w[1:])))))) },
		"plan_fd": func() {
			file := must(os.Open(text(w[1:])))
			defer file.Close()
			plan(orrery.Descriptor{Fd: file.Fd()})
		},
		"plan_memory": func() { plan(orrery.Memory(must(os.ReadFile(text(w[1:]))))) },
		"experts": func() {
			experts := fields(must(at[*orrery.Model](w[0]).Experts()))
			list(len(w)-1, func(i int) string { return field(experts(w[i+1])) })
		},
		"streaming": func() {
			streaming := fields(must(at[*orrery.Model](w[0]).Streaming()))
			list(len(w)-1, func(i int) string { return field(streaming(w[i+1])) })
		},
		"layer": func() {
			layer := fields(must(at[*orrery.Model](w[0]).Layer(uint32(number(1)))))
			list(len(w)-2, func(i int) string { return field(layer(w[i+2])) })
		},
		"kv_bytes": func() {
			fmt.Println(orrery.KvTypeBytes(orrery.KvType(number(0)), uint32(number(1)), uint32(number(2))))
		},
		"format": func() {
			json := invoke(reflect.ValueOf(at[*orrery.Vocab](w[0]).ChatFormat), nil).(string)
			contains(strings.NewReplacer(", ", ",", ": ", ":").Replace(json), nil, text(w[1:]))
		},
		"set":      func() { set(w[0], text(w[1:])) },
		"callback": func() { callback(w[0], w[1], numbers(w[2:])) },
		"calls":    func() { fmt.Println(yes(calls[w[0]] > 0)) },
		"info":     func() { list(len(w)-1, func(i int) string { return field(fields(things[w[0]])(w[i+1])) }) },
		"compare":  func() { compare(fields(things[w[0]]), w[1], w[2]) },
		"tokenize": func() {
			fmt.Println(words(must(at[*orrery.Vocab](w[0]).Tokenize(text(w[2:]), orrery.TokenizeFlags(number(1))))))
		},
		"detokenize": func() {
			fmt.Println(quote(must(at[*orrery.Vocab](w[0]).Detokenize(numbers(w[2:]), orrery.DetokenizeFlags(number(1))))))
		},
		"messages": func() { list(session().NMessages(), func(i int) string { return quote(must(session().Message(i))) }) },
		"tokens": func() {
			tokens := must(session().Tokens())
			fmt.Println(strings.TrimSpace(fmt.Sprint(session().NTokens(), " ", words(tokens[:first(8, len(tokens))]))))
		},
		"roles": func() {
			roles := fields(must(session().HeadRoles()))
			list(len(w)-1, func(i int) string { return field(roles(w[i+1])) })
		},
		"residency": func() {
			all := must(session().Residency())
			sort.Slice(all, func(i, j int) bool { return all[i] < all[j] })
			fmt.Println(len(all), all[0], all[len(all)-1])
		},
		"adapter": func() { things[w[0]] = must(at[*orrery.Model](w[1]).OpenAdapter(text(w[2:]))) },
		"folder":   func() { things[w[0]] = must(orrery.OpenFolder(text(w[2:]), uint64(number(1)))) },
		"folder_save": func() {
			name := text(w[2:])
			if name == "-" {
				name = ""
			}
			check(at[*orrery.Folder](w[0]).Save(at[*orrery.Session](w[1]), name))
		},
		"folder_load":   func() { check(at[*orrery.Folder](w[0]).Load(at[*orrery.Session](w[1]), text(w[2:]))) },
		"folder_remove": func() { check(at[*orrery.Folder](w[0]).Remove(text(w[1:]))) },
		"folder_list": func() {
			json := strings.NewReplacer(", ", ",", ": ", ":").Replace(must(at[*orrery.Folder](w[0]).List()))
			fmt.Println(strings.Count(json, "{"), yes(strings.Contains(json, text(w[1:]))))
		},
		"adapters": func() {
			var uses []orrery.AdapterUse
			for i := 1; i+1 < len(w); i += 2 {
				scale, _ := strconv.ParseFloat(w[i+1], 32)
				uses = append(uses, orrery.AdapterUse{Adapter: at[*orrery.Adapter](w[i]), Scale: float32(scale)})
			}
			check(session().SetAdapters(uses...))
		},
		"damage":   func() { b := at[[]byte](w[0]); b[len(b)-1] ^= 1 },
		"evaluate": func() { evaluate(session(), w[1] == "1", numbers(w[2:])) },
		"numbers": func() {
			l := must(session().Logits())
			fmt.Println(len(l), largest(l), len(must(session().Embedding())))
		},
		"next":      func() { drain(generation(), number(1)) },
		"drain":     func() { drain(generation(), -1) },
		"answer":    func() { answer(generate()) },
		"functions": func() { functions(session(), number(1), w[2], text(w[3:])) },
		"break":     func() { check(generate().Each(counted(number(1)))) },
		"run":       func() { check(generation().Run(counted(number(1)))) },
		"cancel":    func() { done := make(chan bool); go func() { generation().Cancel(); done <- true }(); <-done },
		"inspect":   func() { json, err := orrery.Inspect(w[0]); contains(json, err, text(w[1:])) },
		"policies":  func() { json, err := orrery.Policies(); contains(json, err, text(w)) },
		"allowed": func() {
			n := 0
			for _, word := range must(at[*orrery.Matcher](w[0]).Mask()) {
				n += bits.OnesCount32(word)
			}
			fmt.Println(n)
		},
		"accept": func() { fmt.Println(must(at[*orrery.Matcher](w[0]).Accept(numbers(w[1:])))) },
		"forced": func() {
			tokens := must(at[*orrery.Matcher](w[0]).Forced())
			fmt.Println(strings.TrimSpace(fmt.Sprint(len(tokens), " ", words(tokens))))
		},
		"match": func() {
			n, complete, err := at[*orrery.Matcher](w[0]).Match(text(w[1:]))
			check(err)
			fmt.Println(n, yes(complete))
		},
		"describe": func() { json, err := at[*orrery.Matcher](w[0]).Describe(); contains(json, err, text(w[1:])) },
		"steps":    func() { json, err := at[*orrery.Calibration](w[0]).Steps(); contains(json, err, text(w[1:])) },
		"profile": func() {
			json, err := orrery.HeadProfileImport(must(at[*orrery.Calibration](w[0]).Profile()))
			contains(json, err, text(w[1:]))
		},
		"gates": func() {
			s, _ := strconv.ParseFloat(w[0], 64)
			json, err := orrery.HeadProfileImportGates(text(w[2:]), s)
			contains(json, err, w[1])
		},
		"calibrate": func() {
			things[w[0]] = calibrate(at[*orrery.Model](w[1]), at[*orrery.Vocab](w[2]), strings.Split(text(w[3:]), "|"))
		},
	}
	if f := other[verb]; f != nil {
		f()
	} else if f := made[verb]; f != nil {
		things[w[0]] = invoke(reflect.ValueOf(f), w[1:])
	} else if name := methods[verb]; name != "" {
		things[w[0]] = invoke(reflect.ValueOf(things[w[1]]).MethodByName(name), w[2:])
	} else if result := invoke(reflect.ValueOf(things[w[0]]).MethodByName(verbs[verb]), w[1:]); result != nil {
		fmt.Println(quote(result))
	}
}

func main() {
	for _, line := range strings.Split(string(must(os.ReadFile(os.Args[1]))), "\n") {
		if line != "" && line[0] != '#' {
			fmt.Println(">", line)
			w := strings.Split(line, " ")
			guarded(func() { step(w[0], w[1:]) })
		}
	}
}
