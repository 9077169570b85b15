#include "pipeline/final_weights.h"

#include "base/error.h"

namespace voodoo::pipeline {

void use_final(const FinalWeights& final, const Workbench& bench, MixedWeights& weights) {
    VOODOO_CHECK(final.tensors.size() == bench.tensors().size(), "weights for {} of {} tensors",
                 final.tensors.size(), bench.tensors().size());
    for (size_t t = 0; t < final.tensors.size(); ++t) {
        const std::string& name = bench.tensors()[t].name;
        VOODOO_CHECK(final.tensors[t].usable(), "{} can't be encoded", name);
        weights.set(name, {{final.tensors[t].view()}, {1.0F}});
    }
    for (const auto& [name, values] : final.tuned) weights.set_values(name, values);
}

}  // namespace voodoo::pipeline
