"""The gated delta net: what it computes, and its operators."""
