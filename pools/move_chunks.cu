// Moves equal chunks of bytes between two memories, one of which may be pinned host memory.
//
// Built for one machine word, one number of lanes and one direction at a time, by the macros
//   WORD_BYTES   what a lane moves at a time: the widest word that divides every address
//   LANES, DEPTH a tile is LANES x DEPTH words of one chunk; DEPTH of them are under way a lane
//   TO_HOST      whether the host end is written
//   SINGLE       whether an id is a slot, not a page

struct Move {
    const int* ids;                       // a host id and a device id, in turn
    const long long *host_layers, *device_layers;  // where the first chunk of each layer is
    unsigned count, first_layer;          // pairs of ids a layer, and which layer is the first
    unsigned slots, count0, count1;       // slots a page; chunks an id, along two inner axes
    unsigned items, parts;                // an item is a layer, an id and an inner place
    int chunk;
    long long shift;                      // added to every host address
    long long host[4], device[4];         // bytes to the next page, slot, place of either axis
};

#if WORD_BYTES == 16
typedef uint4 Word;
#elif WORD_BYTES == 8
typedef uint2 Word;
#elif WORD_BYTES == 4
typedef unsigned Word;
#elif WORD_BYTES == 2
typedef unsigned short Word;
#else
typedef unsigned char Word;
#endif

constexpr int LINE = 128;  // host memory is served a line at a time
constexpr int ROW = LANES * WORD_BYTES;
constexpr int TILE = ROW * DEPTH;

__device__ __forceinline__ Word load(long long address) {
#if WORD_BYTES == 16 && defined(__CUDACC__)
    Word word;  // what is read is read once: it must not drive anything out of the cache
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3},[%4];"
                 : "=r"(word.x), "=r"(word.y), "=r"(word.z), "=r"(word.w)
                 : "l"(address)
                 : "memory");
    return word;
#else
    return __ldcg(reinterpret_cast<const Word*>(address));
#endif
}

__device__ __forceinline__ long long chunk_of(
    const long long* layers, int id, const long long* step, unsigned layer, unsigned slots,
    unsigned i0, unsigned i1) {
    const unsigned number = static_cast<unsigned>(id);
    long long start = layers[layer] + i0 * step[2] + i1 * step[3];
#if SINGLE
    const unsigned page = number / slots;
    start += page * step[0] + (number - page * slots) * step[1];
#else
    start += number * step[0];
#endif
    return start;
}

extern "C" __global__ void __launch_bounds__(1024) move_chunks(const Move move) {
    const unsigned inner = move.count0 * move.count1;
    const unsigned tiles = move.items * move.parts;
    const unsigned lane = threadIdx.x % LANES;
    const unsigned groups = gridDim.x * (blockDim.x / LANES);
    // Groups that follow each other take tiles that do: the bus sees long runs.
    unsigned tile = blockIdx.x * (blockDim.x / LANES) + threadIdx.x / LANES;
    for (; tile < tiles; tile += groups) {
        const unsigned item = tile / move.parts;
        const unsigned part = tile - item * move.parts;
        const unsigned outer = item / inner;
        const unsigned place = item - outer * inner;
        const unsigned i0 = place / move.count1, i1 = place - i0 * move.count1;
        const unsigned which = outer / move.count, nth = outer - which * move.count;
        const unsigned layer = move.first_layer + which;
        const int* ids = move.ids + 2 * nth;
        const long long host = move.shift + chunk_of(
            move.host_layers, ids[0], move.host, layer, move.slots, i0, i1);
        const long long device = chunk_of(
            move.device_layers, ids[1], move.device, layer, move.slots, i0, i1);
        const long long from = TO_HOST ? device : host, to = TO_HOST ? host : device;
        // Every row but a chunk's first begins where a line of host memory does.
        const int first = static_cast<int>(part) * TILE - static_cast<int>(host % LINE)
                          + static_cast<int>(lane) * WORD_BYTES;
        Word words[DEPTH];
#pragma unroll
        for (int row = 0; row < DEPTH; row++) {
            const int at = first + row * ROW;
            if (at >= 0 && at < move.chunk) words[row] = load(from + at);
        }
#pragma unroll
        for (int row = 0; row < DEPTH; row++) {
            const int at = first + row * ROW;
            if (at >= 0 && at < move.chunk) *reinterpret_cast<Word*>(to + at) = words[row];
        }
    }
}
