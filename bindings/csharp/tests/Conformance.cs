// Conformance, C#: carries out the steps of a script, prints what they give. ../../conformance/README.md has the verbs.
using System;
using System.Collections;
using System.Collections.Generic;
using System.Globalization;
using System.IO;
using System.Linq;
using System.Text;
using System.Threading;
using Orrery;

static class Conformance {
    sealed class Raised : Exception {}
    static readonly Dictionary<string, object> things = new Dictionary<string, object>();    // handles by name
    static readonly Dictionary<string, object> pending = new Dictionary<string, object>();   // options of the next call
    static readonly Dictionary<string, int> calls = new Dictionary<string, int>();           // of callbacks
    static readonly StringBuilder printed = new StringBuilder();

    static void Print(params object[] words) { printed.Append(string.Join(" ", words.Select(x => Convert.ToString(x, CultureInfo.InvariantCulture)))).Append('\n'); }
    static string Yes(bool value) { return value ? "yes" : "no"; }
    static string Camel(string snake) { return string.Concat(snake.Split('_').Select(word => char.ToUpperInvariant(word[0]) + word.Substring(1))); }
    static string Quote(string text) { return Quote(Encoding.UTF8.GetBytes(text)); }
    static string Quote(byte[] data) {
        return '"' + string.Concat(data.Select(b => b >= 32 && b < 127 && b != '"' && b != '\\' ? ((char)b).ToString() : "\\x" + b.ToString("x2"))) + '"';
    }
    static object Pending(string name) {
        if (!pending.ContainsKey(name)) pending[name] = Activator.CreateInstance(typeof(Library).Assembly.GetType("Orrery." + Camel(name) + "Options"));
        return pending[name];
    }
    static T Take<T>(string name) { var options = (T)Pending(name); pending.Remove(name); return options; }
    static object Parse(string text, Type type) { return type == typeof(string) ? text : Convert.ChangeType(text, type, CultureInfo.InvariantCulture); }
    static void Set(string name, string text) {
        var options = Pending(name.Split('.')[0]);
        var field = options.GetType().GetField(Camel(name.Split('.')[1]));
        if (field.FieldType == typeof(Folder)) { field.SetValue(options, At<Folder>(text)); return; }
        if (field.FieldType == typeof(Model)) { field.SetValue(options, At<Model>(text)); return; }
        if (!field.FieldType.IsGenericType) { field.SetValue(options, Parse(text, field.FieldType)); return; }
        var item = field.FieldType.GetGenericArguments()[0];
        var pair = item.GetGenericArguments();
        ((IList)field.GetValue(options)).Add(pair.Length == 0 ? text
            : Activator.CreateInstance(item, Parse(text.Split(' ')[0], pair[0]), Parse(text.Split(' ')[1], pair[1])));
    }
    static void Callback(string name, string action, int[] ids) {
        var options = Pending(name.Split('.')[0]);
        var key = name.Split('.')[1];
        calls[key] = 0;
        Func<bool> act = () => { ++calls[key]; return action == "raise" ? throw new Raised() : action != "stop"; };
        var functions = new Dictionary<string, Delegate> {
            { "log", new Action<int, string>((level, message) => act()) }, { "progress", new Func<ulong, ulong, bool>((done, total) => act()) },
            { "logits_hook", new LogitsHook((logits, tokens) => { if (action == "force") logits[ids[calls[key] % ids.Length]] = 1e9f; return act(); }) } };
        options.GetType().GetField(Camel(key)).SetValue(options, functions[key]);
    }
    static bool Show(Event e) {
        if (e.Type == EventType.Progress) Print("progress", e.Done, e.Total);
        if (e.Type == EventType.Text) Print("text", Quote(e.Text));
        if (e.Type == EventType.Token) Print(new object[] { "token", e.Token, Quote(e.Bytes) }.Concat(e.Top.Length == 0 ? new object[0]
            : new object[] { "near", (int)Math.Floor(.5 - e.Logprob) }).Concat(e.Top.Select(t => (object)t.Key)).ToArray());
        if (e.Type == EventType.Reasoning) Print("reasoning", Quote(e.Text));
        if (e.Type == EventType.Call) Print("call", e.Call, e.Name);
        if (e.Type == EventType.Arguments) Print("arguments", e.Call, e.Name, Quote(e.Text));
        if (e.Type == EventType.CallEnd) Print("call_end", e.Call, e.Name, e.CallId);
        if (e.Type == EventType.Done) {
            var words = new List<object> { "done", e.FinishReason, e.StopIndex, e.PromptTokens, e.ReusedTokens, e.GeneratedTokens };
            if (e.Complete) words.Add("complete");
            Print(words.ToArray());
        }
        return e.Type != EventType.Done;
    }
    static void Drain(Generation g, int limit) { while (limit-- != 0 && Show(g.Next())) {} }
    static void LeaveEarly(Generation g, int limit) { foreach (var e in g) if (!Show(e) || --limit == 0) break; }
    static void Answer(Generation g) {
        var events = g.ToList();
        Print(Quote(string.Concat(events.Select(e => e.Text))), events.Last().FinishReason);
    }
    static void Functions(Session s, int mostTurns, string name, string schema) {
        var function = new Function(name, null, schema, arguments => { Print("function", name); return "seen by " + name; });
        Print(Quote(s.RunTools(new[] { function }, Take<GenerateOptions>("generate"), Take<TemplateOptions>("template"), mostTurns)));
    }
    static Func<string, object> Fields(object thing) {
        object info = thing is Session ? ((Session)thing).Stats() : thing is PlanResult ? thing : thing.GetType().GetMethod("Info").Invoke(thing, null);
        return name => info.GetType().GetField(Camel(name)).GetValue(info);
    }
    static string Field(object value) { return value is string ? Quote((string)value) : value is byte[] ? string.Concat(((byte[])value).Select(b => b.ToString("x2"))) : value.ToString(); }
    static void Compare(Func<string, object> field, params string[] sides) {
        var n = sides.Select(x => char.IsDigit(x[0]) ? ulong.Parse(x) : Convert.ToUInt64(field(x))).ToArray();
        Print(n[0] < n[1] ? "<" : n[0] > n[1] ? ">" : "=");
    }
    static int Largest(IEnumerable<float> row) { return row.Select((x, i) => new { x, i }).Aggregate((best, next) => next.x > best.x ? next : best).i; }
    static void Evaluate(Session s, bool rows, int[] ids) {
        var logits = rows ? new float[ids.Length * 2048] : null;
        s.Evaluate(ids, logits);
        if (rows) Print("largest", string.Join(" ", ids.Select((id, i) => Largest(logits.Skip(i * 2048).Take(2048)))));
    }
    static T At<T>(string name) { return (T)things[name]; }

    static object Make(string verb, string[] w, Func<int, string> rest, Func<int, int[]> ids) {
        switch (verb) {
            case "runtime": return new Runtime(Take<RuntimeOptions>("runtime")); case "vocab": return Vocab.Open(rest(1));
            case "vocab_of": return At<Model>(w[1]).Vocab(); case "model": return At<Runtime>(w[1]).Open(rest(2), Take<ModelOptions>("model"));
            case "vocab_memory": return Vocab.Open(Source.FromMemory(File.ReadAllBytes(rest(1))));
            case "vocab_fd": using (var file = File.OpenRead(rest(1))) return Vocab.Open(FdOf(file));
            case "plan_memory": return Library.Plan(Source.FromMemory(File.ReadAllBytes(rest(1))), Take<RuntimeOptions>("runtime"), Take<ModelOptions>("model"), Take<SessionOptions>("session"));
            case "plan_fd": using (var file = File.OpenRead(rest(1))) return Library.Plan(FdOf(file), Take<RuntimeOptions>("runtime"), Take<ModelOptions>("model"), Take<SessionOptions>("session"));
            case "model_memory": return At<Runtime>(w[1]).Open(Source.FromMemory(File.ReadAllBytes(rest(2))), Take<ModelOptions>("model"));
            case "model_fd": using (var file = File.OpenRead(rest(2))) return At<Runtime>(w[1]).Open(FdOf(file), Take<ModelOptions>("model"));
            case "model_part": using (var file = File.OpenRead(rest(4))) return At<Runtime>(w[1]).Open(FdOf(file, ulong.Parse(w[2]), ulong.Parse(w[3])), Take<ModelOptions>("model"));
            case "folder": return new Folder(rest(2), ulong.Parse(w[1]));
            case "adapter": return At<Model>(w[1]).OpenAdapter(rest(2));
            case "session": return At<Model>(w[1]).OpenSession(Take<SessionOptions>("session")); case "fork": return At<Session>(w[1]).Fork();
            case "plan": return Library.Plan(rest(1), Take<RuntimeOptions>("runtime"), Take<ModelOptions>("model"), Take<SessionOptions>("session"));
            case "calibrate": return At<Model>(w[1]).Calibrate(rest(3).Split('|').Select(x => At<Vocab>(w[2]).Tokenize(x)).ToList(), Take<CalibrateOptions>("calibrate"));
            case "matcher": return At<Vocab>(w[1]).Matcher(Take<GenerateOptions>("generate") ?? new GenerateOptions());
            case "generate": return At<Session>(w[1]).Generate(Take<GenerateOptions>("generate"));
            case "continue": return At<Session>(w[1]).GenerateTokens(ids(2), Take<GenerateOptions>("generate"));
            case "save_buffer": return At<Session>(w[1]).SaveBuffer();
            default: return null;
        }
    }
    static void Embed(Model model, string[] texts) {
        var e = model.Embed(texts, Take<EmbedOptions>("embed"));
        var products = e.Vectors.Skip(1).Select(v => v.Zip(e.Vectors[0], (a, b) => a * b).Sum());
        Print(e.Vectors.Length, e.Vectors[0].Length, string.Join(" ", e.NTokens), "nearest", 1 + Largest(products));
    }

    static Source FdOf(FileStream file, ulong offset = 0, ulong bytes = 0) { return Source.FromFd((int)file.SafeFileHandle.DangerousGetHandle(), offset, bytes); }

    static void Regions(PlanResult plan, string path) {
        var all = Library.PlanRegions(path, Take<RuntimeOptions>("runtime"), Take<ModelOptions>("model"), Take<SessionOptions>("session"));
        Print(string.Join(" ", all.Select(r => Quote(r.Name))), Yes(all.Aggregate(0ul, (sum, r) => sum + r.DeviceBytes) == plan.DeviceBytes));
    }
    static void Do(string verb, string[] w, Func<int, string> rest, Func<int, int[]> ids) {
        object t = w.Length > 0 && things.ContainsKey(w[0]) ? things[w[0]] : null;
        var s = t as Session;
        int n;
        int.TryParse(w.Length > 1 ? w[1] : "", out n);
        switch (verb) {
            case "abi": Print(Library.AbiVersion, Library.Version, Yes(Library.BuildInfo != "")); break;
            case "status": Print(Library.StatusName((Status)int.Parse(w[0]))); break; case "set": Set(w[0], rest(1)); break;
            case "name": Print(Library.ConstantName(w[0], n)); break; case "threads": ((Runtime)t).SetThreads(n, int.Parse(w[2])); break;
            case "embed": Embed((Model)t, rest(1).Split('|')); break;
            case "rank": Print("best", Largest(((Model)t).Rank(rest(1).Split('|')[0], rest(1).Split('|').Skip(1), Take<EmbedOptions>("embed")))); break;
            case "regions": Regions((PlanResult)t, rest(1)); break;
            case "devices": Print(Yes(Library.Devices().All(d => d.Name != "" || d.Refused != ""))); break;
            case "cancel_session": var other = new Thread(s.Cancel); other.Start(); other.Join(); break;
            case "callback": Callback(w[0], w[1], ids(2)); break; case "calls": Print(Yes(calls.ContainsKey(w[0]) && calls[w[0]] > 0)); break;
            case "free": ((IDisposable)t).Dispose(); break; case "info": Print(w.Skip(1).Select(name => (object)Field(Fields(t)(name))).ToArray()); break;
            case "compare": Compare(Fields(t), w[1], w[2]); break; case "tokenize": Print(string.Join(" ", ((Vocab)t).Tokenize(rest(2), (uint)n))); break;
            case "detokenize": Print(Quote(((Vocab)t).Detokenize(ids(2), (uint)n))); break; case "flags": Print(((Vocab)t).TokenFlags(n)); break;
            case "allowed": Print(((Matcher)t).Mask().Sum(word => Convert.ToString(word, 2).Count(c => c == '1'))); break;
            case "accept": Print(((Matcher)t).Accept(ids(1))); break; case "rewind_matcher": ((Matcher)t).Rewind(n); break;
            case "forced": { var forced = ((Matcher)t).Forced(); Print(forced.Length + string.Concat(forced.Select(x => " " + x))); break; }
            case "match": { bool complete; int matched = ((Matcher)t).Match(rest(1), out complete); Print(matched, Yes(complete)); break; }
            case "describe": Print(Yes(((Matcher)t).Describe().Contains(rest(1)))); break;
            case "format": Print(Yes(((Vocab)t).ChatFormat(Take<TemplateOptions>("template")).Replace(", ", ",").Replace(": ", ":").Contains(rest(1)))); break;
            case "render": Print(Quote(((Vocab)t).RenderChat(rest(1), Take<TemplateOptions>("template")))); break;
            case "template": s.SetTemplate(Take<TemplateOptions>("template")); break; case "say": s.AddMessage(w[1], rest(2)); break;
            case "say_json": s.AddMessageJson(rest(1)); break;
            case "messages": Print(Enumerable.Range(0, s.NMessages).Select(i => (object)Quote(s.Message(i))).ToArray()); break;
            case "message": Print(Quote(s.Message(n))); break; case "rewind_messages": s.RewindMessages(n); break;
            case "tokens": Print(string.Join(" ", new[] { s.NTokens }.Concat(s.Tokens().Take(8)))); break; case "rewind": s.Rewind(n); break;
            case "roles": Print(w.Skip(1).Select(name => (object)Field(typeof(HeadRoles).GetField(Camel(name)).GetValue(s.HeadRoles()))).ToArray()); break;
            case "residency": Print(s.Residency().Length, s.Residency().Min(), s.Residency().Max()); break;
            case "folder_save": ((Folder)t).Save(At<Session>(w[1]), rest(2) == "-" ? null : rest(2)); break;
            case "folder_load": ((Folder)t).Load(At<Session>(w[1]), rest(2)); break; case "folder_remove": ((Folder)t).Remove(rest(1)); break;
            case "folder_list": { var json = ((Folder)t).List().Replace(", ", ",").Replace(": ", ":"); Print(json.Count(c => c == '{'), Yes(json.Contains(rest(1)))); break; }
            case "save": s.Save(rest(1)); break; case "load": s.Load(rest(1)); break; case "load_buffer": s.LoadBuffer(At<byte[]>(w[1])); break;
            case "adapters":
                s.SetAdapters(Enumerable.Range(0, w.Length / 2).Select(i => new KeyValuePair<Adapter, float>(
                    At<Adapter>(w[2 * i + 1]), float.Parse(w[2 * i + 2], System.Globalization.CultureInfo.InvariantCulture))).ToArray());
                break;
            case "damage": ((byte[])t)[((byte[])t).Length - 1] ^= 1; break; case "evaluate": Evaluate(s, n == 1, ids(2)); break;
            case "numbers": Print(s.Logits().Length, Largest(s.Logits()), s.Embedding().Length); break; case "next": Drain((Generation)t, n); break;
            case "drain": Drain((Generation)t, -1); break; case "answer": Answer(s.Generate(Take<GenerateOptions>("generate"))); break;
            case "functions": Functions(s, n, w[2], rest(3)); break;
            case "break": LeaveEarly(s.Generate(Take<GenerateOptions>("generate")), n); break; case "run": ((Generation)t).Run(e => { Show(e); return --n != 0; }); break;
            case "cancel": var thread = new Thread(((Generation)t).Cancel); thread.Start(); thread.Join(); break;
            case "experts": Print(w.Skip(1).Select(name => (object)Field(typeof(ExpertsInfo).GetField(Camel(name)).GetValue(((Model)t).Experts()))).ToArray()); break;
            case "streaming": Print(w.Skip(1).Select(name => (object)Field(typeof(StreamingInfo).GetField(Camel(name)).GetValue(((Model)t).Streaming()))).ToArray()); break;
            case "layer": Print(w.Skip(2).Select(name => (object)Field(typeof(LayerInfo).GetField(Camel(name)).GetValue(((Model)t).Layer((uint)n)))).ToArray()); break;
            case "kv_bytes": Print(Library.KvTypeBytes(uint.Parse(w[0]), uint.Parse(w[1]), uint.Parse(w[2]))); break;
            case "inspect": Print(Yes(Library.Inspect(w[0]).Contains(rest(1)))); break; case "policies": Print(Yes(Library.Policies().Contains(rest(0)))); break;
            case "steps": Print(Yes(((Calibration)t).Steps().Contains(rest(1)))); break;
            case "profile": Print(Yes(Library.HeadProfileImport(((Calibration)t).Profile()).Contains(rest(1)))); break;
            case "gates": Print(Yes(Library.HeadProfileImportGates(rest(2), double.Parse(w[0], CultureInfo.InvariantCulture)).Contains(w[1]))); break;
            default: throw new InvalidOperationException(verb);
        }
    }
    static void Main(string[] arguments) {
        foreach (var line in File.ReadAllLines(arguments[0]).Where(x => x != "" && x[0] != '#')) {
            Print(">", line);
            var words = line.Split(' ');
            var w = words.Skip(1).ToArray();
            Func<int, string> rest = i => string.Join(" ", w.Skip(i)).Replace("\\n", "\n");
            Func<int, int[]> ids = i => w.Skip(i).Select(int.Parse).ToArray();
            try {
                var made = Make(words[0], w, rest, ids);
                if (made != null) things[w[0]] = made;
                else Do(words[0], w, rest, ids);
            } catch (OrreryException e) {
                Print("error", Library.StatusName(e.Status).Substring(7), e.Line, e.Column, e.Offset, e.NativeCode, Yes(e.BytesRequested > 0), Yes(e.Message != ""), e.Option == "" ? "-" : e.Option);
            } catch (Raised) {
                Print("raised");
            }
        }
        var bytes = Encoding.UTF8.GetBytes(printed.ToString());
        Console.OpenStandardOutput().Write(bytes, 0, bytes.Length);
    }
}
