#include "quant/imatrix_legacy.h"

#include <cstring>

#include "base/error.h"

namespace voodoo::quant {
namespace {

/// Reads little-endian fields and never goes beyond the end.
class Cursor {
public:
    Cursor(std::string_view bytes, const std::string& where) : rest_(bytes), where_(where) {}

    bool at_end() const { return rest_.empty(); }

    int32_t int32(std::string_view what) {
        int32_t value = 0;
        std::memcpy(&value, take(sizeof(value), what).data(), sizeof(value));
        return value;
    }

    std::string_view take(size_t n, std::string_view what) {
        if (n > rest_.size()) fail(fmt::format("it ends inside {}", what));
        const std::string_view result = rest_.substr(0, n);
        rest_.remove_prefix(n);
        return result;
    }

    [[noreturn]] void fail(const std::string& why) const {
        throw Error(ErrorKind::bad_file, fmt::format("not an importance matrix: {}", why), where_);
    }

private:
    std::string_view rest_;
    const std::string& where_;
};

constexpr int32_t kMaxNameBytes = 1024;

void read_entry(Cursor& cursor, Imatrix& imatrix) {
    const int32_t name_size = cursor.int32("the length of a name");
    if (name_size <= 0 || name_size > kMaxNameBytes) {
        cursor.fail(fmt::format("a name of {} bytes", name_size));
    }
    const std::string name(cursor.take(static_cast<size_t>(name_size), "a name"));
    if (name.find('\0') != std::string::npos) cursor.fail("a name with a zero byte");
    const int32_t n_calls = cursor.int32("the number of calls");
    const int32_t n_values = cursor.int32("the number of values");
    if (n_values < 1) cursor.fail(fmt::format("an entry of {} values", n_values));
    const size_t size = static_cast<size_t>(n_values) * sizeof(float);
    const std::string_view values = cursor.take(size, "the values of an entry");

    ImatrixEntry& entry = imatrix.entries[name];
    entry.sums.resize(static_cast<size_t>(n_values));
    std::memcpy(entry.sums.data(), values.data(), size);
    entry.counts.assign(1, n_calls);
}

}  // namespace

Imatrix parse_legacy_imatrix(std::string_view bytes, const std::string& where) {
    Cursor cursor(bytes, where);
    Imatrix imatrix;
    imatrix.is_legacy = true;
    const int32_t n_entries = cursor.int32("the number of entries");
    if (n_entries < 1) cursor.fail(fmt::format("{} entries", n_entries));
    for (int32_t i = 0; i < n_entries; ++i) read_entry(cursor, imatrix);

    // Files of the first versions end here.
    if (cursor.at_end()) return imatrix;
    const int32_t chunk_count = cursor.int32("the number of chunks");
    imatrix.chunk_count = chunk_count > 0 ? static_cast<uint32_t>(chunk_count) : 0;
    if (cursor.at_end()) return imatrix;
    const int32_t dataset_size = cursor.int32("the length of the dataset's name");
    if (dataset_size < 0) cursor.fail("a dataset name of negative length");
    if (dataset_size > 0) {
        imatrix.datasets.emplace_back(
            cursor.take(static_cast<size_t>(dataset_size), "the dataset's name"));
    }
    return imatrix;
}

}  // namespace voodoo::quant
