"""shardlang: a language and compiler for sharded einsums."""

__version__ = "0.1.0"
