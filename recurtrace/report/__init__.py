"""Tables, figures and pages made from what the stages wrote; nothing here imports torch."""
