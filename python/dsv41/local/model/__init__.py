"""The architecture in torch: layers, caches, shards and their collectives."""
