// The library that encodes. Another libggml-base than the linked one is opened with dlmopen: in the
// default namespace its inner calls would bind to the linked library's functions of the same names,
// and it would silently do nothing.
#include <dlfcn.h>

#include <cstring>

#include "base/error.h"
#include "base/files.h"
#include "base/hash.h"
#include "quant/codec.h"

namespace voodoo::quant {

struct Encoder::Library {
    decltype(&ggml_quantize_chunk) quantize_chunk = nullptr;
    decltype(&ggml_validate_row_data) validate_row_data = nullptr;
    decltype(&ggml_type_name) type_name = nullptr;
    decltype(&ggml_blck_size) blck_size = nullptr;
    decltype(&ggml_type_size) type_size = nullptr;
    decltype(&ggml_version) version_of = nullptr;
    decltype(&ggml_commit) commit_of = nullptr;

    void* handle = nullptr;  // null for the linked library
    std::filesystem::path path;
    std::string version;
    std::string commit;
    std::string sha256;

    Library() = default;
    Library(const Library&) = delete;
    Library& operator=(const Library&) = delete;
    ~Library() {
        if (handle != nullptr) ::dlclose(handle);
    }
};

namespace {

std::string hash_of_file(const std::filesystem::path& path) {
    const MappedFile file(path);
    return Sha256().update(file.bytes().data(), file.bytes().size()).hex();
}

/// File that the linked libggml-base was loaded from. Its type table is asked for because a
/// function's address may be a stub in the executable.
std::filesystem::path linked_path() {
    Dl_info info{};
    if (::dladdr(ggml_get_type_traits(GGML_TYPE_Q8_0), &info) == 0 || info.dli_fname == nullptr) {
        return {};
    }
    return info.dli_fname;
}

template <typename Function>
void load_symbol(void* handle, const char* name, const std::filesystem::path& path, Function& out) {
    void* symbol = ::dlsym(handle, name);
    if (symbol == nullptr) {
        throw Error(ErrorKind::bad_file, fmt::format("the library has no function {}", name),
                    path.string(), "it must be a libggml-base.so of llama.cpp v0.5.0 or near it");
    }
    std::memcpy(&out, &symbol, sizeof(out));
}

}  // namespace

Encoder::Encoder() {
    static const std::shared_ptr<const Library> linked = [] {
        auto library = std::make_shared<Library>();
        library->quantize_chunk = &ggml_quantize_chunk;
        library->validate_row_data = &ggml_validate_row_data;
        library->version = ggml_version();
        library->commit = ggml_commit();
        library->path = linked_path();
        library->sha256 = library->path.empty() ? "unknown" : hash_of_file(library->path);
        return library;
    }();
    library_ = linked;
}

Encoder Encoder::open_library(const std::filesystem::path& path) {
    std::error_code code;
    const std::filesystem::path file = std::filesystem::canonical(path, code);
    if (code) {
        throw Error(ErrorKind::io, fmt::format("can't open the library: {}", code.message()),
                    path.string());
    }
    auto library = std::make_shared<Library>();
    library->path = file;
    library->sha256 = hash_of_file(file);
    library->handle = ::dlmopen(LM_ID_NEWLM, file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library->handle == nullptr) {
        const char* reason = ::dlerror();
        throw Error(ErrorKind::io,
                    fmt::format("can't load the library: {}", reason ? reason : "unknown reason"),
                    file.string());
    }
    Library& lib = *library;
    load_symbol(lib.handle, "ggml_quantize_chunk", file, lib.quantize_chunk);
    load_symbol(lib.handle, "ggml_validate_row_data", file, lib.validate_row_data);
    load_symbol(lib.handle, "ggml_type_name", file, lib.type_name);
    load_symbol(lib.handle, "ggml_blck_size", file, lib.blck_size);
    load_symbol(lib.handle, "ggml_type_size", file, lib.type_size);
    load_symbol(lib.handle, "ggml_version", file, lib.version_of);
    load_symbol(lib.handle, "ggml_commit", file, lib.commit_of);
    lib.version = lib.version_of();
    lib.commit = lib.commit_of();

    for (const TypeInfo& info : all_types()) {
        // The name first: it is the only one that older versions answer safely for a number they do
        // not know.
        const char* name = lib.type_name(info.type);
        if (name == nullptr || std::strcmp(name, ggml_type_name(info.type)) != 0 ||
            lib.blck_size(info.type) != info.block_size ||
            lib.type_size(info.type) != info.block_bytes) {
            throw Error(
                ErrorKind::bad_file,
                fmt::format("the library (ggml {}, {}) has another tensor type {} than ggml {}",
                            lib.version, lib.commit, info.name, ggml_version()),
                file.string(), "use a libggml-base.so with the same tensor types");
        }
    }
    Encoder encoder;
    encoder.library_ = std::move(library);
    return encoder;
}

bool Encoder::is_linked() const {
    return library_->handle == nullptr;
}
const std::filesystem::path& Encoder::path() const {
    return library_->path;
}
const std::string& Encoder::version() const {
    return library_->version;
}
const std::string& Encoder::commit() const {
    return library_->commit;
}
const std::string& Encoder::sha256() const {
    return library_->sha256;
}

std::string Encoder::description() const {
    return fmt::format("{}: ggml {} ({}), {}, sha256 {}", library_->path.string(),
                       library_->version, library_->commit,
                       is_linked() ? "linked" : "opened at run time", library_->sha256);
}

std::string Encoder::identity() const {
    return fmt::format("ggml-{}-{}-{}", library_->version, library_->commit, library_->sha256);
}

size_t Encoder::encode_rows(ggml_type type, const float* src, int64_t n_rows, int64_t n_per_row,
                            const float* imatrix, std::byte* dst) const {
    return library_->quantize_chunk(type, src, dst, 0, n_rows, n_per_row, imatrix);
}

bool Encoder::validate_rows(ggml_type type, const std::byte* data, size_t n_bytes) const {
    return library_->validate_row_data(type, data, n_bytes);
}

}  // namespace voodoo::quant
