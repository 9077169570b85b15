// The table of all settings: the only place where an option of a run is declared.
#pragma once

#include <span>

#include "pipeline/settings.h"
#include "pipeline/settings_field.h"

namespace voodoo::pipeline {

/// All settings, those of one section of the config next to each other. Lives for ever.
std::span<const Field<Settings>> settings_table();

/// A section of the config.
struct SettingsSection {
    std::string_view name;
    std::string_view title;
};
/// The sections in the order of the table.
std::span<const SettingsSection> settings_sections();

/// "gates.lr" -> "gates".
std::string_view section_of(std::string_view key);

}  // namespace voodoo::pipeline
