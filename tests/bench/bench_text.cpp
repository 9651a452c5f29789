// How fast a vocabulary opens and encodes: bench_text MODEL.gguf TEXT_FILE.  The text is repeated to 4 MB;
// each figure is the best of five passes, in processor time of the one thread, since machines have other work
// too.  Decoding and what a stream of tokens costs per token stand beside it.
#include <time.h>

#include <algorithm>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "runtime/gguf/gguf.h"
#include "runtime/text/streaming/stream.h"
#include "runtime/text/tokenizer/tokenizer.h"

namespace {

template <class F>
double best_ms(F&& run) {
  double best = 1e300;
  for (int i = 0; i < 5; i++) {
    timespec from, to;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &from);
    run();
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &to);
    best = std::min(best, 1e3 * static_cast<double>(to.tv_sec - from.tv_sec) + 1e-6 * static_cast<double>(to.tv_nsec - from.tv_nsec));
  }
  return best;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace orrery;
  if (argc != 3) {
    std::fprintf(stderr, "usage: bench_text MODEL.gguf TEXT_FILE\n");
    return 2;
  }
  Result<gguf::File> file = gguf::File::open(argv[1]);
  if (!file.ok()) return std::fprintf(stderr, "%s\n", file.status().message()), 1;
  Result<text::Tokenizer> tokenizer = text::Tokenizer::from_gguf(*file);
  if (!tokenizer.ok()) return std::fprintf(stderr, "%s\n", tokenizer.status().message()), 1;
  std::ifstream in(argv[2], std::ios::binary);
  std::stringstream content;
  content << in.rdbuf();
  if (content.str().empty()) return std::fprintf(stderr, "%s: no text\n", argv[2]), 1;
  std::string text;
  while (text.size() < (4u << 20)) text += content.str();

  const double open_ms = best_ms([&] { (void)text::Tokenizer::from_gguf(*file); });
  std::vector<int32_t> ids;
  const double encode_ms = best_ms([&] {
    ids.clear();
    (void)tokenizer->encode(text, {}, &ids);
  });
  const double decode_ms = best_ms([&] { (void)tokenizer->decode(ids); });
  const std::vector<std::string> stops = {"<|im_end|>", "\n\nUser:"};
  Result<text::TextStream> stream = text::TextStream::create(stops);
  std::string shown;
  const double stream_ms = best_ms([&] {
    stream->reset();
    shown.clear();
    for (const int32_t id : ids) stream->feed(tokenizer->token_bytes(id), &shown);
  });
  const double megabytes = static_cast<double>(text.size()) / 1e6, n = static_cast<double>(ids.size());
  std::printf("vocabulary  %9d tokens   open %8.1f ms\n", tokenizer->n_vocab(), open_ms);
  std::printf("encode      %9.1f MB/s     %8.1f ns/token   (%.2f bytes/token)\n", megabytes / encode_ms * 1e3, encode_ms * 1e6 / n,
              megabytes * 1e6 / n);
  std::printf("decode      %9.1f MB/s\n", megabytes / decode_ms * 1e3);
  std::printf("stream      %9.1f MB/s     %8.1f ns/token\n", megabytes / stream_ms * 1e3, stream_ms * 1e6 / n);
  return 0;
}
