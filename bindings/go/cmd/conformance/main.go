// Conformance, Go: carries out the steps of a script, prints what they give. ../../../conformance/README.md has the verbs.
package main

import (
	"fmt"
	"math"
	"os"
	"reflect"
	"strconv"
	"strings"

	"orrery"
)

type raised struct{}
type closer interface{ Close() error }

var (
	things  = map[string]any{} // handles by name
	calls   = map[string]int{} // how often callbacks were called
	options = map[string]reflect.Value{}
	fresh   = map[string]any{"runtime": orrery.DefaultRuntimeOptions(), "model": orrery.DefaultModelOptions(),
		"session": orrery.DefaultSessionOptions(), "template": orrery.DefaultTemplateOptions(),
		"calibrate": orrery.DefaultCalibrateOptions(), "generate": orrery.DefaultGenerateOptions()}
)

func camel(snake string) string {
	out := ""
	for _, word := range strings.Split(snake, "_") {
		out += strings.ToUpper(word[:1]) + word[1:]
	}
	return out
}

// pending is the options of the next call of a kind.
func pending(kind string) reflect.Value {
	if _, ok := options[kind]; !ok {
		options[kind] = reflect.New(reflect.TypeOf(fresh[kind]))
		options[kind].Elem().Set(reflect.ValueOf(fresh[kind]))
	}
	return options[kind]
}

func take[T any](kind string) *T {
	defer delete(options, kind)
	return pending(kind).Interface().(*T)
}

func parse(to reflect.Value, text string) {
	switch to.Kind() {
	case reflect.String:
		to.SetString(text)
	case reflect.Int32:
		n, _ := strconv.ParseInt(text, 10, 32)
		to.SetInt(n)
	case reflect.Uint32, reflect.Uint64:
		n, _ := strconv.ParseUint(text, 10, 64)
		to.SetUint(n)
	case reflect.Float32, reflect.Float64:
		x, _ := strconv.ParseFloat(text, 64)
		to.SetFloat(x)
	case reflect.Struct:
		name, value, _ := strings.Cut(text, " ")
		parse(to.Field(0), name)
		parse(to.Field(1), value)
	case reflect.Slice:
		item := reflect.New(to.Type().Elem()).Elem()
		parse(item, text)
		to.Set(reflect.Append(to, item))
	}
}

func set(name, text string) {
	kind, field, _ := strings.Cut(name, ".")
	parse(pending(kind).Elem().FieldByName(camel(field)), text)
}

func callback(name, action string, ids []int32) {
	kind, field, _ := strings.Cut(name, ".")
	calls[field] = 0
	act := func() bool {
		calls[field]++
		if action == "raise" {
			panic(raised{})
		}
		return action != "stop"
	}
	functions := map[string]any{"log": func(int32, string) { act() }, "progress": func(uint64, uint64) bool { return act() },
		"logits_hook": func(logits []float32, _ []int32) bool {
			if action == "force" {
				logits[ids[calls[field]%len(ids)]] = 1e9
			}
			return act()
		}}
	pending(kind).Elem().FieldByName(camel(field)).Set(reflect.ValueOf(functions[field]))
}

func yes(value bool) string { return map[bool]string{true: "yes", false: "no"}[value] }

func quote[T string | []byte](data T) string {
	out := ""
	for _, b := range []byte(data) {
		if b >= 32 && b < 127 && b != '"' && b != '\\' {
			out += string(rune(b))
		} else {
			out += fmt.Sprintf("\\x%02x", b)
		}
	}
	return `"` + out + `"`
}

func words[T any](items []T) string { return strings.Trim(fmt.Sprint(items), "[]") }

func must[T any](value T, err error) T {
	check(err)
	return value
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}

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
	case orrery.EventTypeDone:
		fmt.Println("done", e.FinishReason, e.StopIndex, e.PromptTokens, e.ReusedTokens, e.GeneratedTokens)
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
	text, last := "", orrery.Event{}
	check(g.Each(func(e orrery.Event) bool { text += e.Text; last = e; return true }))
	fmt.Println(quote(text), last.FinishReason)
}

func fields(thing any) func(name string) reflect.Value {
	var info any
	switch t := thing.(type) {
	case *orrery.Runtime:
		info = must(t.Info())
	case *orrery.Vocab:
		info = must(t.Info())
	case *orrery.Model:
		info = must(t.Info())
	case *orrery.Session:
		info = must(t.Stats())
	default:
		info = t
	}
	return func(name string) reflect.Value { return reflect.ValueOf(info).FieldByName(camel(name)) }
}

func show1(v reflect.Value) string {
	switch v.Kind() {
	case reflect.String:
		return quote(v.String())
	case reflect.Slice:
		return fmt.Sprintf("%x", v.Bytes())
	}
	return fmt.Sprint(v.Interface())
}

func compare(of func(string) reflect.Value, sides []string) string {
	var n [2]uint64
	for i, side := range sides {
		var err error
		if n[i], err = strconv.ParseUint(side, 10, 64); err != nil {
			n[i], _ = strconv.ParseUint(fmt.Sprint(of(side).Interface()), 10, 64)
		}
	}
	return map[bool]string{n[0] < n[1]: "<", n[0] > n[1]: ">", n[0] == n[1]: "="}[true]
}

func largest(row []float32) (best int) {
	for i, x := range row {
		if x > row[best] {
			best = i
		}
	}
	return best
}

func main() {
	for _, line := range strings.Split(string(must(os.ReadFile(os.Args[1]))), "\n") {
		if line != "" && line[0] != '#' {
			fmt.Println(">", line)
			w := strings.Split(line, " ")
			rest := func(i int) string {
				if i+1 >= len(w) {
					return ""
				}
				return strings.ReplaceAll(strings.Join(w[i+1:], " "), `\n`, "\n")
			}
			guarded(func() { step(w[0], w[1:], rest) })
		}
	}
}

func guarded(f func()) {
	defer func() {
		switch e := recover().(type) {
		case nil:
		case raised:
			fmt.Println("raised")
		case *orrery.Error:
			fmt.Println("error", e.Status.Error()[7:], e.Line, e.Column, e.Offset, e.NativeCode, yes(e.BytesRequested > 0), yes(e.Message != ""))
		default:
			panic(e)
		}
	}()
	f()
}
