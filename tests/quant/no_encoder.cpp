// A shared library that is no libggml-base.
extern "C" int voodoo_test_nothing() {
    return 0;
}
