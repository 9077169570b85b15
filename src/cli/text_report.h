// Results as text for people. The same results as JSON are the pipeline's and the evaluation's own.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "eval/kl.h"
#include "pipeline/stages.h"

namespace voodoo::cli {

std::string quantize_text(const pipeline::QuantizeResult& result);
std::string stages_text(const std::vector<pipeline::StageResult>& stages);
/// `size_bytes`: also say what this size could buy.
std::string inspection_text(const pipeline::Inspection& inspection,
                            std::optional<uint64_t> size_bytes);
std::string doctor_text(const pipeline::DoctorReport& report);
/// One column per file.
std::string eval_text(const std::vector<eval::KlReport>& reports);

}  // namespace voodoo::cli
