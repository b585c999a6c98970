package millrace.sinks;

import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.function.Function;
import org.apache.spark.sql.catalyst.QueryPlanningTracker;
import org.apache.spark.sql.catalyst.analysis.EliminateSubqueryAliases;
import org.apache.spark.sql.catalyst.analysis.UnresolvedAttribute;
import org.apache.spark.sql.catalyst.analysis.UnresolvedRelation;
import org.apache.spark.sql.catalyst.analysis.UnresolvedTableValuedFunction;
import org.apache.spark.sql.catalyst.expressions.CurrentDate;
import org.apache.spark.sql.catalyst.expressions.CurrentTimestampLike;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.expressions.Literal;
import org.apache.spark.sql.catalyst.expressions.LocalTimestamp;
import org.apache.spark.sql.catalyst.expressions.SubqueryExpression;
import org.apache.spark.sql.catalyst.optimizer.InlineCTE;
import org.apache.spark.sql.catalyst.optimizer.PullOutGroupingExpressions;
import org.apache.spark.sql.catalyst.optimizer.PullupCorrelatedPredicates;
import org.apache.spark.sql.catalyst.optimizer.ReplaceDistinctWithAggregate;
import org.apache.spark.sql.catalyst.optimizer.ReplaceExceptWithAntiJoin;
import org.apache.spark.sql.catalyst.optimizer.ReplaceIntersectWithSemiJoin;
import org.apache.spark.sql.catalyst.optimizer.RewriteCorrelatedScalarSubquery;
import org.apache.spark.sql.catalyst.optimizer.RewriteLateralSubquery;
import org.apache.spark.sql.catalyst.optimizer.RewritePredicateSubquery;
import org.apache.spark.sql.catalyst.parser.ParseException;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.SubqueryAlias;
import org.apache.spark.sql.catalyst.plans.logical.UnresolvedWith;
import org.apache.spark.sql.catalyst.plans.logical.View;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.types.DataTypes;
import scala.Option;
import scala.PartialFunction;
import scala.Tuple3;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;
import scala.runtime.AbstractPartialFunction;

/** A view's query as Spark's analysed plan, and the steps on it that take Spark's own classes. */
public final class ViewPlans {
  private static final int ROUNDS_MAX = 20;
  private static final long DAY_US = 86_400_000_000L;

  private ViewPlans() {}

  /** A query → its plan as it is written, in which {@code changes(t)} is the table of events. */
  public static LogicalPlan parsed(SparkSession session, String sql) throws ParseException {
    return withChanges(session.sessionState().sqlParser().parsePlan(sql));
  }

  /**
   * A parsed query → its analysed plan, in which subqueries are joins, and set operations joins and
   * groups. The leaves are the views that tables go by.
   */
  public static LogicalPlan analysed(SparkSession session, LogicalPlan parsed) {
    LogicalPlan plan =
        session.sessionState().analyzer().executeAndCheck(parsed, new QueryPlanningTracker(Option.empty()));
    plan = EliminateSubqueryAliases.apply(new InlineCTE(true, false).apply(plan));
    for (int round = 0; round < ROUNDS_MAX; round++) {
      LogicalPlan next = EliminateSubqueryAliases.apply(rewritten(plan));
      if (next.fastEquals(plan)) {
        break;
      }
      plan = next;
    }
    return PullOutGroupingExpressions.apply(plan);
  }

  private static LogicalPlan rewritten(LogicalPlan plan) {
    LogicalPlan next = RewritePredicateSubquery.apply(pulledUp(plan));
    next = RewriteCorrelatedScalarSubquery.apply(next);
    next = RewriteLateralSubquery.apply(next);
    next = ReplaceIntersectWithSemiJoin.apply(next);
    next = ReplaceExceptWithAntiJoin.apply(next);
    return ReplaceDistinctWithAggregate.apply(next);
  }

  /**
   * A plan whose subqueries, and theirs, have the conditions with what is outside of them pulled up:
   * the rewriting goes down into subqueries, and would lose those of the inner ones.
   */
  private static LogicalPlan pulledUp(LogicalPlan plan) {
    return PullupCorrelatedPredicates.apply(plan)
        .transformAllExpressions(
            partial(
                each ->
                    each instanceof SubqueryExpression query
                        ? query.withNewPlan(pulledUp(query.plan()))
                        : null));
  }

  private static LogicalPlan withChanges(LogicalPlan plan) {
    return plan.transformDownWithSubqueries(
        partial(
            node -> {
              if (node instanceof UnresolvedTableValuedFunction call) {
                return changes(call);
              }
              return node instanceof UnresolvedWith with ? withChanges(with) : null;
            }));
  }

  private static LogicalPlan withChanges(UnresolvedWith with) {
    List<Tuple3<String, SubqueryAlias, Option<Object>>>
        relations = new ArrayList<>();
    CollectionConverters.asJava(with.cteRelations())
        .forEach(
            each -> {
              LogicalPlan changed = withChanges(each._2());
              relations.add(
                  new Tuple3<>(
                      each._1(),
                      (SubqueryAlias) changed,
                      each._3()));
            });
    Seq<Tuple3<String, SubqueryAlias, Option<Object>>>
        all = CollectionConverters.asScala(relations).toSeq();
    return new UnresolvedWith(with.child(), all, with.allowRecursion());
  }

  /** {@code changes(orders)} → the table {@code orders_changes}; null: another function. */
  private static LogicalPlan changes(UnresolvedTableValuedFunction call) {
    boolean named =
        call.name().size() == 1 && call.name().head().toLowerCase(Locale.ROOT).equals("changes");
    if (!named
        || call.functionArgs().size() != 1
        || !(call.functionArgs().head() instanceof UnresolvedAttribute table)) {
      return null;
    }
    List<String> parts = new ArrayList<>(CollectionConverters.asJava(table.nameParts()));
    parts.set(parts.size() - 1, parts.get(parts.size() - 1) + "_changes");
    UnresolvedRelation relation =
        new UnresolvedRelation(
            CollectionConverters.asScala(parts).toSeq(),
            org.apache.spark.sql.util.CaseInsensitiveStringMap.empty(),
            false);
    relation.copyTagsFrom(call);
    return relation;
  }

  /** The name of a leaf that stands for a table; null: the plan is something else. */
  public static String leaf(LogicalPlan plan) {
    return plan instanceof View view ? view.desc().identifier().unquotedString() : null;
  }

  /** The plan with others in place of the leaves of these names, below and in subqueries. */
  public static LogicalPlan replaced(LogicalPlan plan, Map<String, LogicalPlan> leaves) {
    return plan.transformDownWithSubqueries(
        partial(node -> node instanceof View ? leaves.get(leaf(node)) : null));
  }

  /** The plan as of an instant (µs since 1970), where it asks for the time. */
  public static LogicalPlan at(LogicalPlan plan, long micros) {
    return plan.transformAllExpressionsWithSubqueries(
            partial(
                node -> {
                  if (node instanceof CurrentDate) {
                    int day = (int) Math.floorDiv(micros, DAY_US);
                    return Literal.create(day, DataTypes.DateType);
                  }
                  if (node instanceof LocalTimestamp) {
                    return Literal.create(micros, DataTypes.TimestampNTZType);
                  }
                  return node instanceof CurrentTimestampLike
                      ? Literal.create(micros, DataTypes.TimestampType)
                      : null;
                }));
  }

  /** A function that is defined where it doesn't return null. */
  private static <T> PartialFunction<T, T> partial(Function<T, T> function) {
    return new AbstractPartialFunction<>() {
      @Override
      public boolean isDefinedAt(T node) {
        return function.apply(node) != null;
      }

      @Override
      public <A extends T, B> B applyOrElse(A node, scala.Function1<A, B> otherwise) {
        @SuppressWarnings("unchecked")
        B made = (B) function.apply(node);
        return made == null ? otherwise.apply(node) : made;
      }
    };
  }

  /** Whether an expression of a plan's own node has a query of its own. */
  public static boolean hasSubquery(LogicalPlan plan) {
    return !plan.subqueries().isEmpty();
  }

  /** Those of an expression and all of its own whose class has one of the names. */
  public static List<String> expressionsOf(Expression expression, List<String> names) {
    List<String> shown = new ArrayList<>();
    collect(expression, names, shown);
    return shown;
  }

  /** The expressions of a plan's own node, and all of theirs, whose class has one of the names. */
  public static List<String> expressions(LogicalPlan plan, List<String> names) {
    List<String> shown = new ArrayList<>();
    CollectionConverters.asJava(plan.expressions()).forEach(each -> collect(each, names, shown));
    return shown;
  }

  private static void collect(Expression expression, List<String> names, List<String> shown) {
    if (names.contains(expression.getClass().getSimpleName())) {
      shown.add(expression.toString());
    }
    CollectionConverters.asJava(expression.children()).forEach(each -> collect(each, names, shown));
  }
}
