"""A chat program: chat.py MODEL.gguf. Each line of the input is a question; Ctrl-C stops an answer and keeps the talk."""

import sys

import orrery


def main() -> int:
    if len(sys.argv) != 2:
        print("usage: chat.py MODEL.gguf", file=sys.stderr)
        return 2
    with orrery.Runtime() as runtime, runtime.open(sys.argv[1]) as model:
        # A long conversation forgets its beginning instead of stopping.
        chat = model.session(overflow=orrery.Overflow.DROP_OLDEST)
        while True:
            print("> ", end="", file=sys.stderr, flush=True)
            question = sys.stdin.readline()
            if not question:
                return 0
            if not question.strip():
                continue
            chat.add_message("user", question.strip())
            answer = chat.generate(max_tokens=1024)
            try:
                for piece in answer.text():
                    print(piece, end="", flush=True)
            except KeyboardInterrupt:
                pass  # the loop has freed the generation: what was said stays in the conversation
            print()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except orrery.Error as e:
        sys.exit("%s (%s)" % (e.message, e.status.name))
