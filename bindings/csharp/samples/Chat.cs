// A chat program: Chat MODEL.gguf. Each line of the input is a question; Ctrl-C stops an answer and keeps the talk.
using System;
using System.Text;
using System.Threading;
using Orrery;

static class Chat {
    static CancellationTokenSource answering;

    static void Converse(string path) {
        // A long conversation forgets its beginning instead of stopping.
        var options = new SessionOptions { Overflow = Overflow.DropOldest };
        using (var runtime = new Runtime())
        using (var model = runtime.Open(path))
        using (var chat = model.OpenSession(options)) {
            string line;
            Console.Error.Write("> ");
            while ((line = Console.ReadLine()) != null) {
                if (line.Trim() != "") {
                    chat.AddMessage("user", line.Trim());
                    using (answering = new CancellationTokenSource()) {
                        try {
                            foreach (var e in chat.Generate(new GenerateOptions { MaxTokens = 1024 }, answering.Token)) Console.Write(e.Text);
                        } catch (OperationCanceledException) {}
                    }
                    answering = null;
                    Console.WriteLine();
                }
                Console.Error.Write("> ");
            }
        }
    }

    static int Main(string[] arguments) {
        if (arguments.Length != 1) {
            Console.Error.WriteLine("usage: Chat MODEL.gguf");
            return 2;
        }
        Console.OutputEncoding = new UTF8Encoding(false);
        Console.CancelKeyPress += (sender, e) => {
            var stop = answering;
            e.Cancel = stop != null;
            if (stop != null) stop.Cancel();
        };
        try {
            Converse(arguments[0]);
            return 0;
        } catch (OrreryException e) {
            Console.Error.WriteLine(e.Message + " (" + Library.StatusName(e.Status) + ")");
            return 1;
        }
    }
}
