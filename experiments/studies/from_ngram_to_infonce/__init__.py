"""The way from n-grams over noise-contrastive estimation to InfoNCE, figure by figure."""
