// What C#'s users expect beyond the conformance script: Idioms MODEL.gguf
using System;
using System.Collections.Generic;
using System.Linq;
using System.Threading;
using System.Threading.Tasks;
using Orrery;

static class Idioms {
    const string Text = "Nobody in the mill noticed the orange owl. Bruno lives in Salem. Orla is a printer from Tunis. ";
    static Session session;

    static Generation Ask(int repeat, GenerateOptions options = null, CancellationToken token = default(CancellationToken)) {
        session.RewindMessages(0);
        session.AddMessage("user", string.Concat(Enumerable.Repeat(Text, repeat)) + "\n\nWhere does Bruno live?");
        return session.Generate(options, token);
    }
    static void Expect(bool holds, string what) {
        if (!holds) throw new Exception("failed: " + what);
    }
    static E Throws<E>(Action action) where E : Exception {
        try {
            action();
        } catch (E e) {
            return e;
        }
        throw new Exception("no " + typeof(E).Name);
    }

    static void LeavingALoopEarlyFreesTheSession() {
        foreach (var e in Ask(1)) if (e.Type == EventType.Progress) break;
        session.AddMessage("user", "not busy");
        Throws<ArithmeticException>(() => { foreach (var e in Ask(1)) throw new ArithmeticException(e.Text); });
        session.AddMessage("user", "not busy");
        using (Ask(1)) Expect(Throws<OrreryException>(() => session.AddMessage("user", "busy")).Status == Status.Busy, "busy");
        session.AddMessage("user", "not busy");
    }
    static void AskReturnsTheWholeAnswer() {
        session.RewindMessages(0);
        Expect(session.Ask(Text + "\n\nWhere does Bruno live?").Trim() == "Bruno lives in Salem.", "the whole answer");
        using (var source = new CancellationTokenSource()) {
            source.Cancel();
            Throws<OperationCanceledException>(() => session.Ask(Text, null, source.Token));
        }
    }
    static void AnswersHaveTheirForm() {
        var options = new GenerateOptions { Grammar = "{\"const\": [1, \"a text of many words\"]}", GrammarKind = Grammar.JsonSchema, GrammarWhitespace = Whitespace.Compact };
        Expect(Ask(1, options).Whole() == "[1,\"a text of many words\"]", "the whole form");
        options.MaxTokens = 2;
        Throws<System.IO.InvalidDataException>(() => Ask(1, options).Whole());
    }
    const string Calling = "{%- for m in messages -%}{{- '<' + m.role + '>' + m.content -}}{%- for c in m.tool_calls or [] -%}" +
        "{{- '<call>{\"name\": \"' + c.function.name + '\", \"arguments\": ' + (c.function.arguments | tojson) + '}</call>' -}}{%- endfor -%}" +
        "{{- '</>' -}}{%- endfor -%}{%- if add_generation_prompt -%}{{- '<assistant>' -}}{%- endif -%}";

    static void FunctionsAreTools() {
        var options = new GenerateOptions { Tools = Tools.Required, OneCall = 1, MaxTokens = 80 };
        var template = new TemplateOptions { TemplateSource = Calling };
        var given = new System.Collections.Generic.List<string>();
        Func<Function, int, CancellationToken, string> run = (function, turns, token) => {
            session.RewindMessages(0);
            session.AddMessage("user", "hello");
            return session.RunTools(new[] { function }, options, template, turns, token);
        };
        var look = new Function("look", "Looks at \"it\".", "{\"type\": \"object\", \"properties\": {\"at\": {\"enum\": [\"here\"]}}, \"required\": [\"at\"]}",
            arguments => { given.Add(arguments); return "an \"owl\"\n"; });
        run(look, 2, CancellationToken.None);
        Expect(given.Count == 1 && given[0] == "{\"at\": \"here\"}", "arguments");
        Expect(session.NMessages == 4 && session.Message(2).Contains("\"content\": \"an \\\"owl\\\"\\n\""), session.Message(2));
        // What a function throws is told to the model; without parameters it gets none.
        run(new Function("fails", null, null, arguments => { given.Add(arguments); throw new ArithmeticException("too far"); }), 2, CancellationToken.None);
        Expect(given[1] == "{}" && session.Message(2).Contains("ArithmeticException: too far"), "an exception");
        // One turn calls nothing, and a token ends the loop.
        run(look, 1, CancellationToken.None);
        Expect(given.Count == 2 && options.Tools == Tools.Required, "the last turn");
        Throws<ArgumentOutOfRangeException>(() => run(look, 0, CancellationToken.None));
        using (var source = new CancellationTokenSource())
            Throws<OperationCanceledException>(() => run(new Function("stops", null, null, arguments => { source.Cancel(); return ""; }), 3, source.Token));
        session.SetTemplate();
    }
    static void ATokenStopsAPrompt() {
        using (var source = new CancellationTokenSource(30)) {
            Throws<OperationCanceledException>(() => Ask(150, null, source.Token).Count());
            session.AddMessage("user", "not busy");
            Throws<OperationCanceledException>(() => Ask(1, null, source.Token).Count());
        }
    }
    // What a compiler of C# 8 makes of `await foreach (var e in generation.WithCancellation(token)) onEvent(e);`
    static async Task ForEachAsync(Generation generation, CancellationToken token, Action<Event> onEvent) {
        var events = generation.GetAsyncEnumerator(token);
        try {
            while (await events.MoveNextAsync()) onEvent(events.Current);
        } finally {
            await events.DisposeAsync();
        }
    }
    static void AwaitForeachGivesTheSameEvents() {
#if NETSTANDARD2_1_OR_GREATER
        using (var one = Ask(1)) Expect((object)one is IAsyncEnumerable<Event>, "the interface, where the framework has it");
#endif
        var text = "";
        bool done = false;
        ForEachAsync(Ask(6), CancellationToken.None, e => { text += e.Text; done |= e.Type == EventType.Done; }).Wait();
        Expect(done && text != "" && text == string.Concat(Ask(6).Select(e => e.Text)), "the same text");
        session.AddMessage("user", "not busy");

        Throws<InvalidOperationException>(() => ForEachAsync(Ask(20), CancellationToken.None, e => { throw new InvalidOperationException("left"); })
            .GetAwaiter().GetResult());
        session.AddMessage("user", "not busy");

        using (var source = new CancellationTokenSource()) {
            Throws<OperationCanceledException>(() => ForEachAsync(Ask(200), source.Token, e => source.Cancel()).GetAwaiter().GetResult());
        }
        session.AddMessage("user", "not busy");
    }
    static void DisposingWhileNextRunsAndCancellingAfterwards() {
        for (int i = 0; i < 10; ++i) {
            var generation = Ask(20);
            var thread = new Thread(() => {
                try { while (generation.Next().Type != EventType.Done) {} } catch (ObjectDisposedException) {}
            });
            thread.Start();
            Thread.Sleep(2);
            generation.Dispose();
            generation.Dispose();
            generation.Cancel();
            thread.Join();
            Throws<ObjectDisposedException>(() => generation.Next());
        }
        session.AddMessage("user", "not busy");
    }
    static void WhatAHookThrowsComesOut() {
        var generation = Ask(1, new GenerateOptions { LogitsHook = (logits, tokens) => { throw new ArithmeticException("mine"); } });
        Expect(Throws<ArithmeticException>(() => generation.Count()).Message == "mine", "message");
        session.AddMessage("user", "not busy");
    }
    static void ErrorsHaveEveryField() {
        var e = Throws<OrreryException>(() => session.SetTemplate(new TemplateOptions { TemplateSource = "\n {% endfor %}" }));
        Expect(e.Status == Status.UnsupportedTemplate && e.Line == 2 && e.Message != "", "template");
        e = Throws<OrreryException>(() => Vocab.Open("/nowhere"));
        Expect(e.Status == Status.Io && e.NativeCode == 2 && e.Option == "", "native code");
        e = Throws<OrreryException>(() => session.Generate(new GenerateOptions { TopP = 9 }));
        Expect(e.Option == "top_p", "option");
        Throws<ArgumentException>(() => session.AddMessage("user", "a\0b"));
        Throws<ArgumentException>(() => session.Evaluate(new[] { 300 }, new float[5]));
    }
    static void HandlesAreCollectedInAnyOrder(string path) {
        int heard = 0;
        for (int i = 0; i < 3; ++i) {
            var options = new RuntimeOptions { Backend = "cpu", NThreads = 1, LogLevel = LogLevel.Debug, Log = (level, message) => ++heard };
            var forgotten = new Runtime(options).Open(path).OpenSession(new SessionOptions { NContext = 256 });
            forgotten.AddMessage("user", "Hello");
            forgotten.Generate(new GenerateOptions { MaxTokens = 1 }).Next();
            GC.Collect();
            GC.WaitForPendingFinalizers();
        }
        Expect(heard > 0, "log");
    }

    static void AdaptersAndADraftAreOptionsOfASession(string path) {
        var runtime = new Runtime(new RuntimeOptions { NThreads = 1, Backend = "cpu" });
        var model = runtime.Open(path);
        var adapter = model.OpenAdapter(System.IO.Path.Combine(System.IO.Path.GetDirectoryName(path), "adapter.gguf"));
        var options = new SessionOptions { NContext = 512 };
        var later = model.OpenSession(options);
        options.Adapters.Add(new KeyValuePair<Adapter, float>(adapter, 0.5f));
        var given = model.OpenSession(options);
        foreach (var s in new[] { given, later }) s.Evaluate(new[] { 70, 71, 72 });
        Expect(!given.Logits().SequenceEqual(later.Logits()), "an adapter changes logits");
        later.SetAdapters(options.Adapters.ToArray());
        adapter.Dispose();
        later.Evaluate(new[] { 70, 71, 72 });
        Expect(given.Logits().SequenceEqual(later.Logits()), "the option is what the call does");
        Throws<ObjectDisposedException>(() => model.OpenSession(options));
        options.Adapters.Clear();
        options.Speculate = Speculate.Draft;
        options.DraftModel = runtime.Open(path);
        var drafting = model.OpenSession(options);
        options.DraftModel.Dispose();
        drafting.Ask(Text);
        Throws<ObjectDisposedException>(() => model.OpenSession(options));
    }

    static void Main(string[] arguments) {
        var options = new RuntimeOptions { NThreads = 1, Backend = "cpu", DeviceBudgetBytes = 256 << 20, ReservoirBytes = 1 << 20 };
        session = new Runtime(options).Open(arguments[0]).OpenSession(new SessionOptions { NContext = 8192 });
        LeavingALoopEarlyFreesTheSession();
        AskReturnsTheWholeAnswer();
        AnswersHaveTheirForm();
        FunctionsAreTools();
        ATokenStopsAPrompt();
        AwaitForeachGivesTheSameEvents();
        DisposingWhileNextRunsAndCancellingAfterwards();
        WhatAHookThrowsComesOut();
        ErrorsHaveEveryField();
        HandlesAreCollectedInAnyOrder(arguments[0]);
        AdaptersAndADraftAreOptionsOfASession(arguments[0]);
    }
}
