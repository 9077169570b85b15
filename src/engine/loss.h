// The training loss at the logits: CE + lambda KL(teacher || student), and the divergence alone for
// validation.
#pragma once

#include <functional>
#include <vector>

#include "base/threads.h"
#include "engine/outlets.h"

namespace voodoo::engine {

/// Teacher's logits of a slice: [n][n_vocab], valid until the next call.
using TeacherLogits = std::function<std::span<const float>(int batch, int64_t first, int64_t n)>;

struct LossWeights {
    double cross_entropy = 1.0;
    double kl = 1.0;
};

/// Sums over scored tokens, in nats.
struct LossSums {
    double cross_entropy = 0.0;
    double kl = 0.0;
    int64_t n_tokens = 0;   ///< tokens with a KL term
    int64_t n_targets = 0;  ///< tokens with a next token
    bool finite = true;

    double mean_cross_entropy() const {
        return n_targets > 0 ? cross_entropy / static_cast<double>(n_targets) : 0.0;
    }
    double mean_kl() const { return n_tokens > 0 ? kl / static_cast<double>(n_tokens) : 0.0; }
};

/// loss = ( w_ce sum_i CE_i / n_targets + w_kl sum_i KL_i / n_tokens ), CE_i = -log q_i(next
/// token), KL_i = sum_v p_v (log p_v - log q_v) with p the teacher's and q the student's softmax.
///   dL/dlogits_i = w_ce (q - onehot) / n_targets + w_kl (q - p) / n_tokens
/// The last token of a sequence has no target; tokens before `skip` of each sequence are not
/// scored.
class DistillationLoss : public Loss {
public:
    /// tokens: the step's batches, each n_sequences sequences one after another. teacher may be
    /// empty if weights.kl is 0.
    DistillationLoss(std::span<const std::span<const int32_t>> batches, int n_sequences,
                     int64_t n_vocab, LossWeights weights, TeacherLogits teacher, ThreadPool& pool,
                     int64_t skip = 0);

    void add(int batch, int64_t first, int64_t n, float* logits, bool want_gradient) override;
    const LossSums& sums() const { return sums_; }
    /// KL of every scored token in the order of the calls (batch by batch, token by token).
    const std::vector<float>& token_kl() const { return token_kl_; }
    /// The loss as defined above.
    double value() const;

private:
    struct Row {
        double cross_entropy = 0.0;
        double kl = 0.0;
        bool scored = false;
        bool has_target = false;
    };
    Row add_row(int batch, int64_t token, float* logits, const float* teacher,
                bool want_gradient) const;

    std::span<const std::span<const int32_t>> batches_;
    int64_t sequence_length_;
    int64_t n_vocab_;
    LossWeights weights_;
    TeacherLogits teacher_;
    ThreadPool& pool_;
    int64_t skip_;
    int64_t n_scored_ = 0;
    int64_t n_with_target_ = 0;
    LossSums sums_;
    std::vector<float> token_kl_;
};

}  // namespace voodoo::engine
