// What the steps of main.go go by: options, fields and methods by their names, callbacks, and quoted texts.

package main

import (
	"context"
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"orrery.invalid/orrery"
)

type raised struct{}

var (
	things  = map[string]any{} // handles by name
	calls   = map[string]int{} // how often callbacks were called
	pending = map[string]reflect.Value{}
	fresh   = map[string]func() any{"runtime": of(orrery.DefaultRuntimeOptions), "model": of(orrery.DefaultModelOptions),
		"session": of(orrery.DefaultSessionOptions), "template": of(orrery.DefaultTemplateOptions),
		"calibrate": of(orrery.DefaultCalibrateOptions), "generate": of(orrery.DefaultGenerateOptions),
		"embed": of(orrery.DefaultEmbedOptions)}
)

func of[T any](f func() T) func() any { return func() any { v := f(); return &v } }
func yes(value bool) string           { return map[bool]string{true: "yes", false: "no"}[value] }
func words[T any](items []T) string   { return strings.Trim(fmt.Sprint(items), "[]") }
func text(w []string) string          { return strings.ReplaceAll(strings.Join(w, " "), `\n`, "\n") }
func at[T any](name string) T         { return things[name].(T) }
func camel(snake string) string {
	return strings.ReplaceAll(strings.Title(strings.ReplaceAll(snake, "_", " ")), " ", "")
}
func options(kind string) reflect.Value {
	if _, ok := pending[kind]; !ok {
		pending[kind] = reflect.ValueOf(fresh[kind]())
	}
	return pending[kind]
}
func parse(to reflect.Value, given string) reflect.Value {
	switch to.Kind() {
	case reflect.String:
		to.SetString(given)
	case reflect.Pointer:
		to.Set(reflect.ValueOf(things[given]))
	case reflect.Struct:
		name, value, _ := strings.Cut(given, " ")
		parse(to.Field(0), name)
		parse(to.Field(1), value)
	case reflect.Slice:
		to.Set(reflect.Append(to, parse(reflect.New(to.Type().Elem()).Elem(), given)))
	default:
		fmt.Sscan(given, to.Addr().Interface())
	}
	return to
}
func set(name, given string) {
	kind, field, _ := strings.Cut(name, ".")
	parse(options(kind).Elem().FieldByName(camel(field)), given)
}
func calibrate(m *orrery.Model, v *orrery.Vocab, texts []string) any {
	ids := [][]int32{}
	for _, t := range texts {
		ids = append(ids, must(v.Tokenize(t, 0)))
	}
	f := func(o *orrery.CalibrateOptions) (*orrery.Calibration, error) { return m.Calibrate(ids, o) }
	return invoke(reflect.ValueOf(f), nil)
}
func embed(m *orrery.Model, texts []string) {
	f := func(o *orrery.EmbedOptions) (*orrery.Embeddings, error) { return m.Embed(texts, o) }
	e := invoke(reflect.ValueOf(f), nil).(*orrery.Embeddings)
	products := []float32{}
	for _, v := range e.Vectors[1:] {
		sum := float32(0)
		for i := range v {
			sum += v[i] * e.Vectors[0][i]
		}
		products = append(products, sum)
	}
	fmt.Println(len(e.Vectors), len(e.Vectors[0]), words(e.NTokens), "nearest", 1+largest(products))
}
func rank(m *orrery.Model, given []string) {
	f := func(o *orrery.EmbedOptions) ([]float32, error) { return m.Rank(given[0], given[1:], o) }
	fmt.Println("best", largest(invoke(reflect.ValueOf(f), nil).([]float32)))
}
func first(a, b int) int {
	if a < b {
		return a
	}
	return b
}
func check(err error) {
	if err != nil {
		panic(err)
	}
}
func callback(name, action string, ids []int32) {
	kind, field, _ := strings.Cut(name, ".")
	calls[field] = 0
	act := func() bool {
		if calls[field]++; action == "raise" {
			panic(raised{})
		}
		return action != "stop"
	}
	functions := map[string]any{"log": func(orrery.LogLevel, string) { act() }, "progress": func(uint64, uint64) bool { return act() },
		"logits_hook": func(logits []float32, _ []int32) bool {
			if action == "force" {
				logits[ids[calls[field]%len(ids)]] = 1e9
			}
			return act()
		}}
	options(kind).Elem().FieldByName(camel(field)).Set(reflect.ValueOf(functions[field]))
}
func numbers(w []string) (ids []int32) {
	for _, word := range w {
		ids = append(ids, int32(parse(reflect.New(reflect.TypeOf(int32(0))).Elem(), word).Int()))
	}
	return ids
}

// invoke calls f with what the words are by its types: options are the pending ones, the last string takes the rest.
func invoke(f reflect.Value, w []string) (result any) {
	in, n := []reflect.Value{}, f.Type().NumIn()
	for i := 0; i < n; i++ {
		switch t := f.Type().In(i); {
		case t.Kind() == reflect.Interface:
			in = append(in, reflect.ValueOf(context.Background()))
		case t.Kind() == reflect.Pointer:
			kind := strings.ToLower(strings.TrimSuffix(t.Elem().Name(), "Options"))
			in = append(in, options(kind))
			delete(pending, kind)
		case t == reflect.TypeOf([]int32{}):
			in = append(in, reflect.ValueOf(numbers(w)))
		case t.Kind() == reflect.Slice:
			in = append(in, reflect.ValueOf(things[w[0]]))
		case t.Kind() == reflect.String && (i+1 == n || f.Type().In(i+1).Kind() == reflect.Pointer):
			in = append(in, reflect.ValueOf(text(w)))
		default:
			in, w = append(in, parse(reflect.New(t).Elem(), w[0])), w[1:]
		}
	}
	for _, out := range f.Call(in) {
		if err, ok := out.Interface().(error); ok {
			panic(err)
		} else if out.Type().Name() != "error" {
			result = out.Interface()
		}
	}
	return result
}
func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}
func quote(value any) string {
	switch v := value.(type) {
	case string:
		return quote([]byte(v))
	case []byte:
		out := ""
		for _, b := range v {
			out += map[bool]string{true: string(rune(b)), false: fmt.Sprintf("\\x%02x", b)}[b >= 32 && b < 127 && b != '"' && b != '\\']
		}
		return `"` + out + `"`
	}
	return fmt.Sprint(value)
}
func fields(thing any) func(name string) any {
	info := thing
	for _, name := range []string{"Info", "Stats"} {
		if m := reflect.ValueOf(thing).MethodByName(name); m.IsValid() {
			info = invoke(m, nil)
		}
	}
	return func(name string) any {
		field := reflect.ValueOf(info).FieldByName(camel(name))
		if field.CanUint() { // a constant prints its name
			return field.Uint()
		}
		return field.Interface()
	}
}

func compare(field func(string) any, left, right string) {
	a, err := strconv.ParseUint(fmt.Sprint(field(left)), 10, 64)
	check(err)
	b, err := strconv.ParseUint(right, 10, 64)
	if err != nil {
		b, _ = strconv.ParseUint(fmt.Sprint(field(right)), 10, 64)
	}
	fmt.Println(map[bool]string{a < b: "<", a > b: ">", a == b: "="}[true])
}

func largest(row []float32) (best int) {
	for i, x := range row {
		if x > row[best] {
			best = i
		}
	}
	return best
}

func list(n int, item func(i int) string) {
	line := []string{}
	for i := 0; i < n; i++ {
		line = append(line, item(i))
	}
	fmt.Println(strings.Join(line, " "))
}

func contains(json string, err error, needle string) {
	check(err)
	fmt.Println(yes(strings.Contains(json, needle)))
}

func field(value any) string {
	if bytes, ok := value.([]byte); ok {
		return fmt.Sprintf("%x", bytes)
	}
	return quote(value)
}

func dash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

func guarded(f func()) {
	defer func() {
		switch e := recover().(type) {
		case nil:
		case raised:
			fmt.Println("raised")
		case *orrery.Error:
			fmt.Println("error", e.Status.Error()[7:], e.Line, e.Column, e.Offset, e.NativeCode, yes(e.BytesRequested > 0), yes(e.Message != ""), dash(e.Option))
		default:
			panic(e)
		}
	}()
	f()
}
