"""The memory-pool and HiCache engine: geometry, pools, copies, allocator, tree, controller."""
