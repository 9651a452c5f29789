// A chat program: chat MODEL.gguf. Each line of the input is a question; Ctrl-C stops an answer and keeps the talk.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"

	"orrery.invalid/orrery"
)

func answer(chat *orrery.Session) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	generation, err := chat.Generate(ctx, nil)
	if err == nil {
		err = generation.Each(func(e orrery.Event) bool { fmt.Print(e.Text); return true })
	}
	fmt.Println()
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

func converse(path string) error {
	options := orrery.DefaultSessionOptions()
	options.Overflow = orrery.OverflowDropOldest // a long conversation forgets its beginning instead of stopping
	runtime, err := orrery.NewRuntime(nil)
	if err != nil {
		return err
	}
	model, err := runtime.Open(path, nil)
	if err != nil {
		return err
	}
	chat, err := model.NewSession(&options)
	for input := bufio.NewScanner(os.Stdin); err == nil && input.Scan(); {
		if err = chat.AddMessage("user", strings.TrimSpace(input.Text())); err == nil {
			err = answer(chat)
		}
	}
	return err // what is not closed is freed when it is collected
}

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: chat MODEL.gguf")
		os.Exit(2)
	}
	if err := converse(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
