// Functions that a model calls: the loop from an answer's calls to the answer that calls nothing.
using System;
using System.Collections.Generic;
using System.Text;
using System.Threading;

namespace Orrery {

/// <summary>A function that the model may call.</summary>
public sealed class Function {
    public readonly string Name, Description;
    /// <summary>A JSON schema of the arguments.</summary>
    public readonly string Parameters;
    /// <summary>From arguments as JSON, which fits the schema, to the result's text.</summary>
    public readonly Func<string, string> Run;

    /// <param name="parameters">A JSON schema of the arguments; null: no parameters.</param>
    public Function(string name, string description, string parameters, Func<string, string> run) {
        Name = name ?? throw new ArgumentNullException(nameof(name));
        Run = run ?? throw new ArgumentNullException(nameof(run));
        Description = description;
        Parameters = parameters ?? "{\"type\": \"object\", \"properties\": {}}";
    }

    internal string Described() {
        var description = Description == null ? "" : ", \"description\": " + Json.Quote(Description);
        return "{\"type\": \"function\", \"function\": {\"name\": " + Json.Quote(Name) + description + ", \"parameters\": " + Parameters + "}}";
    }

    /// What the function throws is the call's result, unless it says that the work is cancelled.
    internal string Result(string arguments) {
        try {
            return Run(arguments) ?? "";
        } catch (Exception e) when (!(e is OperationCanceledException)) {
            return e.GetType().Name + ": " + e.Message;
        }
    }
}

static class Json {
    internal static string Quote(string text) {
        var quoted = new StringBuilder("\"");
        foreach (char c in text) {
            if (c == '"' || c == '\\') quoted.Append('\\').Append(c);
            else if (c < ' ') quoted.Append("\\u").Append(((int)c).ToString("x4"));
            else quoted.Append(c);
        }
        return quoted.Append('"').ToString();
    }
}

public sealed partial class Session {
    /// <summary>Answers the conversation with functions that the model may call. Calls are run in turn, and their results are messages, until an
    /// answer calls nothing: returns that answer's text. What a function throws is the call's result, as text; an OperationCanceledException ends
    /// the loop, and so does the token. Options.Tools chooses as in Generate (default Auto); after the first answer it is Auto, in the last turn
    /// None. This sets the session's template to the file's with these tools, and with `template`.</summary>
    public string RunTools(IEnumerable<Function> functions, GenerateOptions options = null, TemplateOptions template = null, int mostTurns = 8,
                           CancellationToken token = default(CancellationToken)) {
        if (mostTurns < 1) throw new ArgumentOutOfRangeException(nameof(mostTurns), "at least one answer is needed");
        var byName = new Dictionary<string, Function>();
        var described = new List<string>();
        foreach (var function in functions) {
            byName[function.Name] = function;
            described.Add(function.Described());
        }
        using (var keep = new Keep()) {
            var o = (template ?? new TemplateOptions()).ToNative(keep);
            o.tools_json = keep.Text("[" + string.Join(", ", described) + "]");
            Native.Check((ref orrery_error e) => Native.orrery_session_set_template(handle, ref o, ref e));
        }
        uint tools = options == null || options.Tools == Tools.Ignored ? Tools.Auto : options.Tools;
        for (int turn = 1; ; ++turn) {
            if (turn > 1) tools = Tools.Auto;
            if (turn == mostTurns) tools = Tools.None;
            bool named = turn == 1 && tools != Tools.None;  // the tool's name is for the first answer alone
            var text = new StringBuilder();
            var calls = new List<Event>();
            bool cancelled = false;
            foreach (var e in Begin(options, token, tools, named)) {
                if (e.Type == EventType.Text) text.Append(e.Text);
                if (e.Type == EventType.CallEnd) calls.Add(e);
                cancelled |= e.FinishReason == FinishReason.Cancelled;
            }
            if (calls.Count == 0 || cancelled) return text.ToString();
            foreach (var call in calls) {
                token.ThrowIfCancellationRequested();
                var content = byName[call.Name].Result(call.Text);
                AddMessageJson("{\"role\": \"tool\", \"tool_call_id\": " + Json.Quote(call.CallId) + ", \"name\": " + Json.Quote(call.Name) +
                               ", \"content\": " + Json.Quote(content) + "}");
            }
        }
    }
}
}
