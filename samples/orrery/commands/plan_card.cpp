#include "commands/plan_card.h"

#include <algorithm>
#include <vector>

#include "charts/chart.h"
#include "command.h"
#include "json_file.h"
#include "measure/division.h"

namespace orrery::tool {
namespace {

constexpr double kGib = 1024.0 * 1024 * 1024;
constexpr double kKeptGib = 1.0;  // of a card's memory, for the driver, graphs and the screen

struct CardRow {
  const char* name;
  uint64_t n_on_device;
};

// The divisions that are compared: the fewest units, as many as fit, and all of them.
std::vector<CardRow> divisions_of(const Division& division, uint64_t fitting) {
  std::vector<CardRow> rows = {{"the fewest", division.least()}};
  if (fitting > division.least() && fitting < division.n_units()) rows.push_back({"as many as fit", fitting});
  rows.push_back({"all", division.n_units()});
  return rows;
}

double tokens_per_second(const Division& division, const Rates& rates, uint64_t n, Reuse reuse) {
  return 1.0 / division.time(rates, n, reuse).total();
}

void draw_card(const std::string& path, const std::string& title, const Division& division, const Rates& rates, double budget) {
  LineChart chart;
  chart.title = title;
  const std::string units = division.mixture() ? "experts" : "layers";
  chart.subtitle = "predicted; by GiB of the card's memory that " + units + " have";
  chart.x.label = "GiB of " + units + " on the card", chart.y.label = "tokens/s", chart.y.min = 0;
  Series series[] = {{division.mixture() ? "experts chosen alike" : "layers", {}, {}},
                     {"experts as a cache of published models has them", {}, {}}};
  const uint64_t least = division.least(), all = division.n_units();
  constexpr uint64_t kPoints = 64;
  for (uint64_t i = 0; i <= kPoints; ++i) {
    const uint64_t n = least + (all - least) * i / kPoints;
    for (Series& s : series) {
      s.x.push_back(static_cast<double>(n) * division.unit_bytes() / kGib);
      s.y.push_back(tokens_per_second(division, rates, n, &s == series ? Reuse::uniform : Reuse::reused));
    }
  }
  chart.series = {series[0]};
  if (division.mixture()) chart.series.push_back(series[1]);
  const double fits = tokens_per_second(division, rates, std::max(least, division.fitting(budget)), Reuse::reused);
  chart.references.push_back({"what fits", fits});
  draw(chart).canvas.save_png(path);
}

}  // namespace

int plan_card(const Args& args, const std::string& path, const orrery_plan_result& plan, Output& out) {
  const Card* const card = find_card(args.text("--card", ""));
  if (!card) {
    std::string names;
    for (const Card& known : all_cards()) names += std::string(names.empty() ? "" : ", ") + known.name;
    throw UsageError("--card: no card is called '" + args.text("--card", "") + "'; expected one of " + names);
  }
  const Json description = parse_json(inspect(path), path);
  Division division;
  division.work = work_per_token(description);
  // Half of the context is the mean of a session that fills it.
  const double kv = static_cast<double>(plan.full_kv_bytes) / 2 + static_cast<double>(plan.compressed_kv_bytes + plan.digests_bytes);
  division.session_bytes = static_cast<double>(plan.device_bytes - plan.weights_bytes);
  division.kv_bytes = kv;
  const double budget = args.has("--budget") ? static_cast<double>(args.bytes("--budget", 0)) : (card->memory_gib - kKeptGib) * kGib;
  const uint64_t all = division.n_units();
  const bool mixture = division.mixture();
  const char* const units = mixture ? "experts" : "layers";
  const Rates rates = rates_of(*card, mixture);
  const uint64_t fitting = division.fitting(budget), least = division.least();
  const bool fits = fitting == all || division.bytes(least) <= budget;
  const uint64_t more = std::max(least, division.fitting(budget + kGib));
  Json rows = Json::array();
  if (!args.has("--json")) {
    out.write(format("On %s, of whose %.4g GiB a session may have %.2f GiB: reading at %.0f GB/s, a link of %.4g GB/s.\n", card->name,
                     card->memory_gib, budget / kGib, rates.read / 1e9, rates.link / 1e9));
    out.write(format("Predicted, behind half of %s tokens\n\n", grouped(plan.n_context).c_str()));
    out.write(format("%-16s %9s %9s %9s  %8s %8s %8s %8s  %9s%s\n", (std::string(units) + " there").c_str(), "number", "GiB", "in all",
                     "weights", "KV", "experts", "waiting", "tokens/s", mixture ? "  by cache   by host" : "   by host"));
  }
  for (const CardRow& row : divisions_of(division, fitting)) {
    const TokenTime t = division.time(rates, row.n_on_device, Reuse::uniform),
                    cached = division.time(rates, row.n_on_device, Reuse::reused);
    const double units_gib = static_cast<double>(row.n_on_device) * division.unit_bytes() / kGib;
    if (args.has("--json")) {
      rows.push_back({{"division", row.name},
                      {mixture ? "experts_on_device" : "layers_on_device", row.n_on_device},
                      {"device_bytes", static_cast<uint64_t>(division.bytes(row.n_on_device))},
                      {"fits", division.bytes(row.n_on_device) <= budget},
                      {"weights_ms", t.weights * 1e3},
                      {"kv_ms", t.kv * 1e3},
                      {"experts_ms", t.experts * 1e3},
                      {"link_ms", t.link * 1e3},
                      {"exposed_ms", t.exposed * 1e3},
                      {"tokens_per_second", 1 / t.total()},
                      {"tokens_per_second_reused", 1 / cached.total()}});
      rows.back()["tokens_per_second_by_host"] = 1 / division.time_by_host(rates, row.n_on_device).total();
      continue;
    }
    const auto ms = [](double seconds) { return format("%.2f ms", seconds * 1e3); };
    out.write(format("%-16s %9s %9.2f %9.2f  %8s %8s %8s %8s  %9.1f%s%s\n", row.name, grouped(row.n_on_device).c_str(), units_gib,
                     division.bytes(row.n_on_device) / kGib, ms(t.weights).c_str(), ms(t.kv).c_str(), ms(t.experts).c_str(),
                     ms(t.exposed).c_str(), 1 / t.total(),
                     ((mixture ? format(" %9.1f", 1 / cached.total()) : std::string()) +
                      format(" %9.1f", 1 / division.time_by_host(rates, row.n_on_device).total()))
                         .c_str(),
                     division.bytes(row.n_on_device) <= budget ? "" : "  does not fit"));
  }
  const auto speed = [&](uint64_t n) { return 1 / division.time_by_host(rates, n).total(); };
  const double now = speed(std::max(least, fitting)), then = speed(more);
  const double chunk_link = division.chunk_link_seconds(rates, std::max(least, fitting));
  if (const std::string* picture = args.find("--card-picture"))
    draw_card(*picture, path.substr(path.find_last_of('/') + 1) + " on " + card->name, division, rates, budget);
  if (args.has("--json")) {
    out.write(dump_json({{"card", card->name},
                         {"budget_bytes", static_cast<uint64_t>(budget)},
                         {"n_context", plan.n_context},
                         {"resident_bytes", division.work.resident_bytes},
                         {"session_bytes", static_cast<uint64_t>(division.session_bytes)},
                         {"n_experts", mixture ? all : 0},
                         {"n_layers", division.work.n_layers},
                         {mixture ? "experts_on_device" : "layers_on_device", fits ? fitting : 0},
                         {"fits", fits},
                         {"divisions", rows},
                         {"chunk_link_ms", fits ? chunk_link * 1e3 : 0.0},
                         {"tokens_per_second_of_one_more_gib", fits ? then - now : 0.0}},
                        2) +
              "\n");
    return fits ? kExitOk : kExitDoesNotFit;
  }
  if (mixture)
    out.write(
        "\nwaiting: for experts over the link, if each is chosen as often as another. by cache: if they are chosen again as often\n"
        "as published models were seen to do (both: --host-computes never). by host: if the processor computes the experts that are\n"
        "not there, and reads 60 GB/s; only those of long prompts cross the link then.\n");
  else
    out.write(
        "\nwaiting: for layers over the link, each of which crosses it once for a token, or for all tokens of a prompt's chunk\n"
        "(--host-computes never). by host: if the processor computes as much of the feed-forward blocks, and reads 60 GB/s; only\n"
        "prompts cross the link then.\n");
  if (!fits) {
    out.write(format("It does not fit: %s are missing.\n", human_bytes(static_cast<uint64_t>(division.bytes(least) - budget)).c_str()));
    return kExitDoesNotFit;
  }
  if (fitting < all)
    out.write(
        format("A prompt's chunk brings the other %s once, in %.2f s: at most %s tokens/s in chunks of 2,048.\n"
               "One more GiB would bring %.1f tokens/s (by host).\n",
               units, chunk_link, grouped(static_cast<uint64_t>(2048 / chunk_link)).c_str(), then - now));
  return kExitOk;
}

}  // namespace orrery::tool
