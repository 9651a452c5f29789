// walk_json(): every member of a description, in order, whatever its strings hold; and a million members in linear time.
#include <gtest/gtest.h>

#include <ctime>

#include "samples/orrery/json_file.h"

namespace orrery::tool {
namespace {

std::string walked(const std::string& text) {
  std::string all;
  walk_json(text, [&](std::string_view part, const std::string& key, const Json& value) {
    all += std::string(part) + "/" + key + "=" + dump_json(value, -1) + " ";
  });
  return all;
}

TEST(WalkJson, VisitsEveryMemberInOrder) {
  EXPECT_EQ(walked("{}"), "");
  EXPECT_EQ(walked("{\"a\":1,\"b\":\"x\",\"c\":null,\"d\":true,\"e\":-1.5}"), "/a=1 /b=\"x\" /c=null /d=true /e=-1.5 ");
  EXPECT_EQ(walked("{ \"m\" : { \"k\" : 1 , \"l\" : { \"n\" : [ 1 , { } ] } } ,\n \"t\" : [ { \"s\" : [ 2 ] } , [ ] , 3 ] , \"z\" : { } , "
                   "\"y\":[] }"),
            "m/k=1 m/l={\"n\":[1,{}]} t/={\"s\":[2]} t/=[] t/=3 ");
  // Strings that look like structure.
  EXPECT_EQ(walked(R"({"m":{"a}\"]":"{[,:\\","b\\":"\\\""},"s":"}"})"), R"(m/a}"]="{[,:\\" m/b\="\\\"" /s="}" )");
}

TEST(WalkJson, ManyKeysTakeLinearTime) {
  const auto seconds = [](int n_keys) {
    std::string text = "{\"metadata\":{";
    for (int i = 0; i < n_keys; ++i) text += (i ? ",\"key." : "\"key.") + std::to_string(i) + "\":" + std::to_string(i);
    text += "}}";
    double best = 1e9;  // of this process's processor time, so other programs do not count
    for (int run = 0; run < 3; ++run) {
      const std::clock_t begin = std::clock();
      int n = 0;
      walk_json(text, [&](std::string_view, const std::string&, const Json& value) { n += value.is_number(); });
      EXPECT_EQ(n, n_keys);
      best = std::min(best, static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC);
    }
    return best;
  };
  // Sixteen times the keys: 16 times as long if linear, 256 times if quadratic.
  EXPECT_LT(seconds(160000), 80 * (seconds(10000) + 1e-3));
}

}  // namespace
}  // namespace orrery::tool
