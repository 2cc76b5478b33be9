"""Extends transformers' Trainer: objectives, arguments, optimizers, data, probe and evaluation."""
