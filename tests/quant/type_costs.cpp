// Prints what encoding, decoding, mixing and contracting cost on one core of this machine, in
// nanoseconds per weight and type: the figures in quant/types.cpp.
#include <cstdio>
#include <ctime>

#include "test_data.h"

namespace voodoo::quant {
namespace {

/// Nanoseconds per weight of a function that handles n weights, over at least min_seconds.
template <typename Function>
double ns_per_weight(int64_t n, double min_seconds, const Function& function) {
    const std::clock_t start = std::clock();  // CPU time: other work on the machine does not count
    double seconds = 0.0;
    int64_t n_calls = 0;
    do {
        function();
        ++n_calls;
        seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
    } while (seconds < min_seconds);
    return 1e9 * seconds / static_cast<double>(n_calls * n);
}

int print_costs() {
    ThreadPool pool(1);
    const MatrixShape shape{2048, 64, 1};
    const MatrixShape small{2048, 4, 1};
    const int64_t n = shape.n_elements();
    const std::vector<float> weights = random_weights(n, 1);
    const std::vector<float> importance = random_importance(shape.n_per_row, 2);
    std::vector<float> rows(weights.size());
    std::vector<float> transposed(weights.size());
    std::printf("%-8s %7s %8s %8s %8s %8s %8s\n", "type", "init s", "encode", "decode", "mix",
                "mix+T", "contract");
    for (const TypeInfo& info : all_types()) {
        std::vector<std::byte> bytes(size_bytes(info.type, shape.n_per_row, shape.n_rows));
        const Encoder encoder;
        const std::clock_t start = std::clock();
        ggml_quantize_init(info.type);
        const double init_seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
        const double encode_ns = ns_per_weight(small.n_elements(), 0.05, [&] {
            encoder.encode_rows(info.type, weights.data(), small.n_rows, small.n_per_row,
                                importance.data(), bytes.data());
        });
        for (int64_t row = small.n_rows; row < shape.n_rows; row += small.n_rows) {
            std::memcpy(bytes.data() + row_bytes(info.type, 2048) * static_cast<uint64_t>(row),
                        bytes.data(), size_bytes(info.type, 2048, small.n_rows));
        }
        const CandidateView view = make_view(info.type, bytes.data(), shape.n_per_row);
        const std::vector<CandidateView> views = {view};
        const std::vector<float> p = {0.5f};
        double c = 0.0;
        const double decode_ns = ns_per_weight(n, 0.05, [&] {
            for (int64_t row = 0; row < shape.n_rows; ++row) {
                to_float(info.type, bytes.data() + static_cast<uint64_t>(row) * view.row_size_bytes,
                         rows.data(), shape.n_per_row);
            }
        });
        const double mix_ns = ns_per_weight(n, 0.05, [&] {
            mix(views, p, shape, MixOutput{rows.data(), nullptr}, pool);
        });
        const double both_ns = ns_per_weight(n, 0.05, [&] {
            mix(views, p, shape, MixOutput{rows.data(), transposed.data()}, pool);
        });
        const double contract_ns = ns_per_weight(
            n, 0.05, [&] { contract(views, weights.data(), shape, &c, nullptr, pool); });
        std::printf("%-8s %7.2f %8.1f %8.2f %8.2f %8.2f %8.2f\n", std::string(info.name).c_str(),
                    init_seconds, encode_ns, decode_ns, mix_ns, both_ns, contract_ns);
    }
    return 0;
}

}  // namespace
}  // namespace voodoo::quant

int main() {
    return voodoo::quant::print_costs();
}
