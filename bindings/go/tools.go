// Functions that a model calls: the loop from an answer's calls to the answer that calls nothing.

package orrery

import (
	"context"
	"encoding/json"
	"fmt"
)

// Function is one that the model may call.
type Function struct {
	Name, Description string
	// Parameters is a JSON schema of the arguments; nil: no parameters.
	Parameters json.RawMessage
	// Run gets arguments that fit the schema. A string is the result's text, other values are encoded as JSON. An error is the call's
	// result, as text, unless the context is over.
	Run func(ctx context.Context, arguments json.RawMessage) (any, error)
}

// RunToolsOptions are options of RunTools; nil means the defaults.
type RunToolsOptions struct {
	Generate  *GenerateOptions // of each answer; Tools and ToolName of the first one
	Template  *TemplateOptions // the file's template with these; ToolsJson is the functions'
	MostTurns int              // answers, at most; 0: 8
}

// RunTools answers the conversation with functions that the model may call. Calls are run in turn, and their results are messages, until an
// answer calls nothing: it returns that answer's text. Generate.Tools chooses as in Generate, default ToolsAuto; after the first answer it
// is ToolsAuto, in the last turn ToolsNone. The session keeps the template and these tools.
func (s *Session) RunTools(ctx context.Context, functions []Function, options *RunToolsOptions) (string, error) {
	if options == nil {
		options = &RunToolsOptions{}
	}
	generate, template, most := DefaultGenerateOptions(), DefaultTemplateOptions(), options.MostTurns
	if options.Generate != nil {
		generate = *options.Generate
	}
	if options.Template != nil {
		template = *options.Template
	}
	if most == 0 {
		most = 8
	}
	if most < 0 {
		return "", &Error{Status: StatusInvalidArgument, Message: fmt.Sprintf("MostTurns is %d: at least one answer is needed", most)}
	}
	if generate.Tools == ToolsIgnored {
		generate.Tools = ToolsAuto
	}
	byName, err := describe(functions, &template)
	if err == nil {
		err = s.SetTemplate(&template)
	}
	for turn := 1; err == nil; turn++ {
		if turn > 1 {
			generate.Tools, generate.ToolName = ToolsAuto, ""
		}
		if turn == most {
			generate.Tools, generate.ToolName = ToolsNone, ""
		}
		var text string
		var calls []Event
		if text, calls, err = s.answer(ctx, &generate); err != nil || len(calls) == 0 {
			return text, err
		}
		for _, call := range calls {
			if err = s.result(ctx, byName[call.Name], call); err != nil {
				break
			}
		}
	}
	return "", err
}

// describe writes the functions into the template's tools.
func describe(functions []Function, template *TemplateOptions) (map[string]Function, error) {
	type function struct {
		Name        string          `json:"name"`
		Description string          `json:"description,omitempty"`
		Parameters  json.RawMessage `json:"parameters"`
	}
	type tool struct {
		Type     string   `json:"type"`
		Function function `json:"function"`
	}
	tools, byName := []tool{}, map[string]Function{}
	for _, f := range functions {
		parameters := f.Parameters
		if parameters == nil {
			parameters = json.RawMessage(`{"type": "object", "properties": {}}`)
		}
		tools = append(tools, tool{"function", function{f.Name, f.Description, parameters}})
		byName[f.Name] = f
	}
	described, err := json.Marshal(tools)
	template.ToolsJson = string(described)
	return byName, err
}

// answer is one answer's text and the calls that wait for results: none where it was cancelled.
func (s *Session) answer(ctx context.Context, options *GenerateOptions) (text string, calls []Event, err error) {
	generation, err := s.Generate(ctx, options)
	if err != nil {
		return "", nil, err
	}
	err = generation.Each(func(e Event) bool {
		switch {
		case e.Type == EventTypeText:
			text += e.Text
		case e.Type == EventTypeCallEnd:
			calls = append(calls, e)
		case e.Type == EventTypeDone && e.FinishReason == FinishReasonCancelled:
			calls = nil
		}
		return true
	})
	return text, calls, err
}

type toolMessage struct {
	Role       string `json:"role"`
	ToolCallID string `json:"tool_call_id"`
	Name       string `json:"name"`
	Content    string `json:"content"`
}

// result runs a call and adds its result as a message.
func (s *Session) result(ctx context.Context, f Function, call Event) error {
	value, err := f.Run(ctx, json.RawMessage(call.Text))
	if ctx.Err() != nil {
		return ctx.Err()
	}
	content, isText := value.(string)
	if err == nil && !isText {
		var encoded []byte
		encoded, err = json.Marshal(value)
		content = string(encoded)
	}
	if err != nil {
		content = err.Error()
	}
	message, err := json.Marshal(toolMessage{"tool", call.CallID, call.Name, content})
	if err != nil {
		return err
	}
	return s.AddMessageJSON(string(message))
}
