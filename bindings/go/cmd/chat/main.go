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

	"orrery"
)

func answer(chat *orrery.Session) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	options := orrery.DefaultGenerateOptions()
	options.MaxTokens = 1024
	generation, err := chat.Generate(ctx, &options)
	if err != nil {
		return err
	}
	err = generation.Each(func(e orrery.Event) bool { fmt.Print(e.Text); return true })
	fmt.Println()
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

func converse(path string) error {
	runtime, err := orrery.NewRuntime(nil)
	if err != nil {
		return err
	}
	defer runtime.Close()
	model, err := runtime.Open(path, nil)
	if err != nil {
		return err
	}
	defer model.Close()
	options := orrery.DefaultSessionOptions()
	options.Overflow = orrery.OverflowDropOldest // a long conversation forgets its beginning instead of stopping
	chat, err := model.NewSession(&options)
	if err != nil {
		return err
	}
	defer chat.Close()
	for input := bufio.NewScanner(os.Stdin); input.Scan(); {
		if err = chat.AddMessage("user", strings.TrimSpace(input.Text())); err == nil {
			err = answer(chat)
		}
		if err != nil {
			return err
		}
	}
	return nil
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
