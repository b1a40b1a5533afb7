// As call.c, and errors, threads, moves, views of others.
#include "small.hpp"

#include <fstream>
#include <iostream>
#include <thread>
#include <vector>

using namespace smelt;

// A std::mdspan of C++23, as far as the header needs one.
struct matrix {
  using element_type = float;
  float* data;
  static constexpr std::size_t rank() { return 2; }
  float* data_handle() const { return data; }
  int extent(std::size_t dimension) const { return dimension ? 3 : 5; }
  int stride(std::size_t dimension) const { return dimension ? 1 : 3; }
};
static_assert(!std::is_constructible_v<tensor_view<const float, 2>, tensor<double, 2>&>, "another dtype");
static_assert(!std::is_constructible_v<tensor_view<const float, 2>, tensor<float, 1>&>, "another rank");
static_assert(!std::is_constructible_v<tensor_view<float, 2>, tensor_view<const float, 2>>, "no memory to write");
static_assert(!std::is_copy_constructible_v<small::model> && std::is_nothrow_move_constructible_v<small::model>);

template <class Call>
void refused(int code, const char* part, Call&& call) {
  try {
    call();
  } catch (const error& failure) {
    if (failure.code() == code && std::string(failure.what()).find(part) != std::string::npos) return;
    std::cerr << "code " << failure.code() << ": " << failure.what() << "\n";
    std::exit(1);
  }
  std::cerr << "no error: " << part << "\n";
  std::exit(1);
}

int main(int, char** argv) {
  std::vector<float> x(15);
  std::vector<std::int64_t> index(5);
  for (int i = 0; i < 15; i++) x[i] = float(i) * 0.37f - 2;
  for (int i = 0; i < 5; i++) index[i] = i * i;
  small::model first(argv[1]);
  small::model model = std::move(first);
  auto states = model.new_states(5);
  const small::inputs in{{x, {5, 3}}, {index, {5}}};
  model(in, states);
  small::outputs out{tensor<float, 2>({5, 3}), tensor<bool, 1>({10})};
  model(in, states, out);
  std::ofstream file(argv[2], std::ios::binary);
  const auto write = [&](const auto& tensor) {
    file.write(reinterpret_cast<const char*>(tensor.data()), tensor.size() * sizeof(*tensor.data()));
  };
  write(out.y), write(out.flags), write(states.cache), write(states.steps);

  const auto same = [&](const small::outputs& other) {
    return std::equal(other.y.begin(), other.y.end(), out.y.begin());
  };
  states.cache(0, 0) = 1, states.steps() = 6;
  for (auto& element : states.cache) element = 1;
  if (!same(model({matrix{x.data()}, {index, {5}}}, states))) return std::cerr << "mdspan\n", 2;
  std::vector<int> right(8);
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; t++)
    threads.emplace_back([&, t] {
      auto mine = model.new_states(5);
      for (int run = 0; run < 200; run++) {
        for (auto& element : mine.cache) element = 1;
        right[t] += same(model(in, mine));
      }
    });
  for (auto& thread : threads) thread.join();
  for (int count : right)
    if (count != 200) return std::cerr << "threads\n", 3;

  refused(SMELT_E_SHAPE, "x", [&] { model({{x.data(), {5, 2}}, {index, {5}}}, states); });
  refused(SMELT_E_SHAPE, "", [&] { model({{x.data(), {5, 3}, {1, 5}}, {index, {5}}}, states); });
  refused(SMELT_E_SHAPE, "of 15", [&] { tensor_view<const float, 2>(x, {4, 3}); });
  refused(SMELT_E_SHAPE, "", [&] { model({{x.data(), {0, 3}}, {index.data(), {0}}}, model.new_states(0)); });
  refused(SMELT_E_SHAPE, "flags", [&] {
    small::outputs wrong{tensor<float, 2>({5, 3}), tensor<bool, 1>({9})};
    model(in, states, wrong);
  });
  refused(SMELT_E_VALUE, "index out of range", [&] {
    std::vector<std::int64_t> negative(5, -1);
    model({{x, {5, 3}}, {negative, {5}}}, states);
  });
  refused(SMELT_E_WEIGHTS, "/nowhere", [] { small::model("/nowhere"); });
  refused(SMELT_E_WEIGHTS, "", [] {
    alignas(64) static const char text[64] = "no weights";
    small::model(text, sizeof text);
  });
  return 0;
}
