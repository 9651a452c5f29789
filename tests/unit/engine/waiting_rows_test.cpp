// Exported rows of logits: each session gets its own row, however many steps other sessions run, while there is room.
#include <gtest/gtest.h>

#include <deque>
#include <vector>

#include "runtime/engine/shared/waiting_rows.h"
#include "tests/unit/kv/fixture.h"

namespace orrery::waiting_rows_test {
namespace {

using engine::WaitingRows;

constexpr int32_t kVocab = 10, kEmbd = 3, kRows = model::kLogitRows;

class WaitingRowsTest : public ::testing::Test {
 protected:
  struct Session {
    std::atomic<bool> waits{false};
    std::vector<float> logits = std::vector<float>(kVocab, -1.0f), embedding = std::vector<float>(kEmbd, -1.0f);
  };

  WaitingRowsTest() : rows_(kVocab, kEmbd) {
    EXPECT_TRUE(backend_.reserve_arena(4096).ok());
    model::Workspace work;
    work.normed = {backend_.arena().address};
    work.logits = work.normed + 4 * kEmbd;
    work.exported_embeddings = work.logits + kRows * kVocab;
    rows_.use(work_ = work);
    description_.n_embd = kEmbd;
  }
  // A step of n_rows rows, whose last one's logits begin with `value`.
  void step(Session* session, float value, int32_t n_rows = 1) {
    rows_.drop(&session->waits);
    ASSERT_TRUE(rows_.make_room(&backend_, 1).ok());
    for (int32_t i = 0; i < kVocab; ++i) *floats(work_.logits + static_cast<uint64_t>(i)) = value + static_cast<float>(i);
    for (int32_t i = 0; i < 4 * kEmbd; ++i) *floats(work_.normed + static_cast<uint64_t>(i)) = -value - static_cast<float>(i);
    rows_.add({&session->waits, session->logits.data(), session->embedding.data()}, description_, n_rows);
  }
  static float* floats(Ptr<const float> p) { return reinterpret_cast<float*>(p.address); }
  // What lies there waits, and is the step's.
  void expect_on_device(const Session& session, float value) {
    ASSERT_TRUE(session.waits);
    ASSERT_TRUE(rows_.logits(&session.waits));
    for (int32_t i = 0; i < kVocab; ++i) EXPECT_EQ(floats(rows_.logits(&session.waits))[i], value + static_cast<float>(i));
  }
  static void expect_fetched(const Session& session, float value, int32_t n_rows = 1) {
    EXPECT_FALSE(session.waits);
    for (int32_t i = 0; i < kVocab; ++i) EXPECT_EQ(session.logits[static_cast<size_t>(i)], value + static_cast<float>(i));
    for (int32_t i = 0; i < kEmbd; ++i)
      EXPECT_EQ(session.embedding[static_cast<size_t>(i)], -value - static_cast<float>((n_rows - 1) * kEmbd + i)) << "the last row's";
  }

  kv::MemoryBackend backend_;
  model::Workspace work_;
  model::Description description_;
  WaitingRows rows_;
};

TEST_F(WaitingRowsTest, SessionsThatTakeTurnsKeepTheirs) {
  std::deque<Session> sessions(kRows);
  for (size_t round = 0; round < 3; ++round)
    for (size_t i = 0; i < sessions.size(); ++i)
      step(&sessions[i], static_cast<float>(1000 * round + 100 * i), 1 + static_cast<int32_t>(i % 4));
  for (size_t i = 0; i < sessions.size(); ++i) expect_on_device(sessions[i], static_cast<float>(2000 + 100 * i));
  for (size_t i = 0; i < sessions.size(); ++i) {
    ASSERT_TRUE(rows_.fetch(&backend_, &sessions[i].waits).ok());
    EXPECT_FALSE(rows_.logits(&sessions[i].waits));
    expect_fetched(sessions[i], static_cast<float>(2000 + 100 * i), 1 + static_cast<int32_t>(i % 4));
  }
}

TEST_F(WaitingRowsTest, WhoHasWaitedLongestGivesWay) {
  std::deque<Session> sessions(kRows + 2);
  for (size_t i = 0; i < kRows; ++i) step(&sessions[i], static_cast<float>(100 * i));
  step(&sessions[0], 5000);  // the longest is another one now
  rows_.drop(&sessions[3].waits);
  step(&sessions[kRows], 6000);  // where that one's was
  EXPECT_FALSE(sessions[3].waits);
  expect_on_device(sessions[1], 100);
  step(&sessions[kRows + 1], 7000);
  expect_fetched(sessions[1], 100);
  expect_on_device(sessions[2], 200);
  expect_on_device(sessions[0], 5000);
  expect_on_device(sessions[kRows], 6000);
  expect_on_device(sessions[kRows + 1], 7000);
}

TEST_F(WaitingRowsTest, StepsOfManyRowsTakeAllTheRoom) {
  std::deque<Session> sessions(3);
  for (size_t i = 0; i < sessions.size(); ++i) step(&sessions[i], static_cast<float>(100 * i), 2);
  ASSERT_TRUE(rows_.make_room(&backend_, 0).ok());  // a part of a prompt
  for (size_t i = 0; i < sessions.size(); ++i) expect_on_device(sessions[i], static_cast<float>(100 * i));
  ASSERT_TRUE(rows_.make_room(&backend_, 2).ok());
  for (size_t i = 0; i < sessions.size(); ++i) expect_fetched(sessions[i], static_cast<float>(100 * i), 2);
}

}  // namespace
}  // namespace orrery::waiting_rows_test
