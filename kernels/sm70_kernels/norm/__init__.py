"""Row norms, the gated norm of a GDN layer, and the norm with rotary embedding of queries and keys."""
