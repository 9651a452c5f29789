// The steps by verb. `w` has the arguments as words, rest(i) those from the i-th on as text.

package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"orrery"
)

func at[T any](name string) T { return things[name].(T) }

func step(verb string, w []string, rest func(int) string) {
	n := 0
	if len(w) > 1 {
		n, _ = strconv.Atoi(w[1])
	}
	ids := func(i int) (out []int32) {
		for _, word := range w[i:] {
			out = append(out, int32(must(strconv.Atoi(word))))
		}
		return out
	}
	session := func(i int) *orrery.Session { return at[*orrery.Session](w[i]) }
	generate := func(i int) *orrery.Generation {
		return must(session(i).Generate(context.Background(), take[orrery.GenerateOptions]("generate")))
	}
	switch verb {
	case "runtime":
		things[w[0]] = must(orrery.NewRuntime(take[orrery.RuntimeOptions]("runtime")))
	case "vocab":
		things[w[0]] = must(orrery.OpenVocab(rest(1)))
	case "vocab_of":
		things[w[0]] = must(at[*orrery.Model](w[1]).Vocab())
	case "model":
		things[w[0]] = must(at[*orrery.Runtime](w[1]).Open(rest(2), take[orrery.ModelOptions]("model")))
	case "session":
		things[w[0]] = must(at[*orrery.Model](w[1]).NewSession(take[orrery.SessionOptions]("session")))
	case "fork":
		things[w[0]] = must(session(1).Fork())
	case "plan":
		things[w[0]] = must(orrery.Plan(rest(1), take[orrery.RuntimeOptions]("runtime"), take[orrery.ModelOptions]("model"),
			take[orrery.SessionOptions]("session")))
	case "calibrate":
		var texts [][]int32
		for _, text := range strings.Split(rest(3), "|") {
			texts = append(texts, must(at[*orrery.Vocab](w[2]).Tokenize(text, 0)))
		}
		things[w[0]] = must(at[*orrery.Model](w[1]).Calibrate(texts, take[orrery.CalibrateOptions]("calibrate")))
	case "generate":
		things[w[0]] = generate(1)
	case "continue":
		things[w[0]] = must(session(1).GenerateTokens(context.Background(), ids(2), take[orrery.GenerateOptions]("generate")))
	case "save_buffer":
		things[w[0]] = must(session(1).SaveBuffer())
	case "abi":
		fmt.Println(orrery.AbiVersion(), orrery.Version(), yes(orrery.BuildInfo() != ""))
	case "status":
		fmt.Println(orrery.Status(must(strconv.Atoi(w[0]))).Error())
	case "set":
		set(w[0], rest(1))
	case "callback":
		callback(w[0], w[1], ids(2))
	case "calls":
		fmt.Println(yes(calls[w[0]] > 0))
	case "free":
		check(things[w[0]].(closer).Close())
	case "info":
		of, line := fields(things[w[0]]), []string{}
		for _, name := range w[1:] {
			line = append(line, show1(of(name)))
		}
		fmt.Println(strings.Join(line, " "))
	case "compare":
		fmt.Println(compare(fields(things[w[0]]), w[1:]))
	case "tokenize":
		fmt.Println(words(must(at[*orrery.Vocab](w[0]).Tokenize(rest(2), uint32(n)))))
	case "detokenize":
		fmt.Println(quote(must(at[*orrery.Vocab](w[0]).Detokenize(ids(2), uint32(n)))))
	case "flags":
		fmt.Println(at[*orrery.Vocab](w[0]).TokenFlags(int32(n)))
	case "render":
		fmt.Println(quote(must(at[*orrery.Vocab](w[0]).RenderChat(rest(1), take[orrery.TemplateOptions]("template")))))
	case "template":
		check(session(0).SetTemplate(take[orrery.TemplateOptions]("template")))
	case "say":
		check(session(0).AddMessage(w[1], rest(2)))
	case "say_json":
		check(session(0).AddMessageJSON(rest(1)))
	case "messages":
		line := []string{}
		for i := 0; i < session(0).NMessages(); i++ {
			line = append(line, quote(must(session(0).Message(i))))
		}
		fmt.Println(strings.Join(line, " "))
	case "message":
		fmt.Println(quote(must(session(0).Message(n))))
	case "rewind_messages":
		check(session(0).RewindMessages(n))
	case "tokens":
		tokens := append([]int32{int32(session(0).NTokens())}, must(session(0).Tokens())...)
		if len(tokens) > 9 {
			tokens = tokens[:9]
		}
		fmt.Println(words(tokens))
	case "rewind":
		check(session(0).Rewind(n))
	case "save":
		check(session(0).Save(rest(1)))
	case "load":
		check(session(0).Load(rest(1)))
	case "load_buffer":
		check(session(0).LoadBuffer(at[[]byte](w[1])))
	case "damage":
		bytes := at[[]byte](w[0])
		bytes[len(bytes)-1] ^= 1
	case "evaluate":
		if n == 0 {
			check(session(0).Evaluate(ids(2)))
			return
		}
		logits, line := must(session(0).EvaluateLogits(ids(2))), "largest"
		for size := len(logits) / len(w[2:]); len(logits) > 0; logits = logits[size:] {
			line += fmt.Sprint(" ", largest(logits[:size]))
		}
		fmt.Println(line)
	case "numbers":
		logits := must(session(0).Logits())
		fmt.Println(len(logits), largest(logits), len(must(session(0).Embedding())))
	case "next":
		drain(at[*orrery.Generation](w[0]), n)
	case "drain":
		drain(at[*orrery.Generation](w[0]), -1)
	case "answer":
		answer(generate(0))
	case "break":
		check(generate(0).Each(counted(n)))
	case "run":
		check(at[*orrery.Generation](w[0]).Run(counted(n)))
	case "cancel":
		done := make(chan struct{})
		go func() { at[*orrery.Generation](w[0]).Cancel(); close(done) }()
		<-done
	case "inspect":
		fmt.Println(yes(strings.Contains(must(orrery.Inspect(w[0])), rest(1))))
	case "policies":
		fmt.Println(yes(strings.Contains(must(orrery.Policies()), rest(0))))
	case "steps":
		fmt.Println(yes(strings.Contains(must(at[*orrery.Calibration](w[0]).Steps()), rest(1))))
	case "profile":
		fmt.Println(yes(strings.Contains(must(orrery.HeadProfileImport(must(at[*orrery.Calibration](w[0]).Profile()))), rest(1))))
	case "gates":
		fmt.Println(yes(strings.Contains(must(orrery.HeadProfileImportGates(rest(2), must(strconv.ParseFloat(w[0], 64)))), w[1])))
	default:
		panic(verb)
	}
}
