// Settings as TOML: the config that a user writes and the record that a run keeps. Keys:
// docs/config.md.
#pragma once

#include <string>
#include <string_view>

#include "pipeline/settings.h"

namespace voodoo::pipeline {

/// Every setting that has a value, defaults included; settings_from_toml gives the same settings
/// back. Sizes are in bytes. The gates' n_steps is derived and not written.
std::string settings_to_toml(const Settings& settings);

/// Defaults overridden by what `text` has. `where` names it in errors, e.g. a path.
/// Throws Error(usage) listing all that is wrong: unknown keys, each with the nearest known one,
/// and bad values.
Settings settings_from_toml(std::string_view text, std::string_view where);

/// The same on top of settings that are there already: what `text` does not have stays. With an
/// error, `settings` is unchanged.
void apply_toml(Settings& settings, std::string_view text, std::string_view where);

/// A config that says everything: every key with its help, unit and default, and those without a
/// default commented out.
std::string example_toml();

}  // namespace voodoo::pipeline
